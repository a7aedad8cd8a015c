"""A checkpoint fine-tuned to tell the complexity classes, from prompts with raters' classes."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from classifier.complexity.encoder_classes import save_classes
from classifier.complexity.model import CUTS
from classifier.encoders.native_transformer import servable_config
from classifier.encoders.pooled_transformer import PooledTransformer
from classifier.errors import TrainingDataError
from classifier.features.routing_input import routing_input_of_text
from classifier.training.fitting.complexity import LabelledPrompt
from classifier.training.recipes.fine_tune import FineTuneSettings, LabelledTexts, fine_tune
from classifier.training.recipes.pretrain import save_checkpoint

VALID = 10  # one of so many rows decides when training stops


def train_classes(
    rows: Sequence[LabelledPrompt], checkpoint: Path, target: Path, settings: FineTuneSettings | None = None
) -> None:
    """Fine-tune the checkpoint on `rows` and write the folder `target`, for `load_classes`.

    Raises `CheckpointError` for a checkpoint that is not served, `TrainingDataError` for too few rows or a `target`
    that exists.
    """
    servable_config(checkpoint)
    if len(rows) < VALID or target.exists():
        raise TrainingDataError(
            f"{len(rows)} rows for {target}; at least {VALID} are needed, and a folder that is new."
        )
    settings = settings or FineTuneSettings()
    raters = [np.array(row.classes)[:, None] <= np.arange(1, CUTS + 1) for row in rows]
    labels = np.stack([one.mean(axis=0, dtype=np.float32) for one in raters])
    turns = [routing_input_of_text(row.prompt).turn for row in rows]
    order = np.random.default_rng(settings.seed).permutation(len(rows))
    valid, train = (
        LabelledTexts([turns[i] for i in part], labels[part], np.ones(len(part), np.float32))
        for part in (order[::VALID], np.delete(order, np.s_[::VALID]))
    )
    transformer = PooledTransformer.load(checkpoint)
    tuned = fine_tune(transformer, train, valid, settings)
    save_checkpoint(target, transformer.model, transformer.tokenizer)
    save_classes(target, tuned.head_weight, tuned.head_bias)
