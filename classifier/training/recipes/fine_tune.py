"""Fine-tune a transformer end to end: one linear layer over the pooled state for all outcomes, or for the complexity
classes, from prompts with raters' classes."""

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import torch
from torch.nn.functional import binary_cross_entropy_with_logits

from classifier.complexity.encoder_classes import save_classes
from classifier.complexity.model import CUTS
from classifier.encoders.checkpoint import TOKENIZER
from classifier.encoders.native_transformer import servable_config
from classifier.encoders.pooled_transformer import PooledTransformer, batches_by_length, shuffled_batches
from classifier.errors import TrainingDataError
from classifier.features.routing_input import routing_input_of_text
from classifier.training.fitting.complexity import LabelledPrompt
from classifier.training.recipes.training_loop import Progress, ResumableLoop, Schedule

Float = npt.NDArray[np.float32]
DROPOUT = 0.1


class FineTuneSettings(msgspec.Struct, frozen=True, kw_only=True):
    """`learning_rate` of the checkpoint's parameters, `head_learning_rate` of the new layer; at most `epochs` passes
    over the rows in batches of `tokens_per_step` tokens; the valid loss is measured `measurements` times per epoch."""

    learning_rate: float = 5e-5
    head_learning_rate: float = 1e-3
    epochs: int = 4
    tokens_per_step: int = 4096
    measurements: int = 2
    patience: int = 3
    seed: int = 0


@dataclass(frozen=True)
class LabelledTexts:
    """n texts with `labels` float32 [n, heads] in [0, 1], soft ones allowed, NaN unobserved."""

    texts: Sequence[str]
    labels: Float
    weights: Float
    """float32 [n]."""

    def __post_init__(self) -> None:
        if not len(self.texts) == len(self.labels) == len(self.weights):
            raise TrainingDataError(
                f"{len(self.texts)} texts, {len(self.labels)} rows of labels and {len(self.weights)} weights differ."
            )


@dataclass(frozen=True)
class FineTuned:
    """The transformer is trained in place."""

    transformer: PooledTransformer
    head_weight: Float
    """[hidden, heads], applied to its pooled states."""
    head_bias: Float
    """[heads]."""
    progress: Progress
    """The valid losses."""


class OutcomeNetwork(torch.nn.Module):  # type: ignore[misc]  # torch is untyped here
    """Checkpoint → dropout → linear layer. A head's bias starts at the logit of its outcome's rate, so that no steps
    are spent on learning it."""

    def __init__(self, transformer: PooledTransformer, rates: Float) -> None:
        super().__init__()
        self.body = transformer.model
        self.transformer = [transformer]  # in a list, so that it is no submodule: its parameters are `body`'s
        self.dropout = torch.nn.Dropout(DROPOUT)
        self.head = torch.nn.Linear(transformer.hidden, len(rates), device=transformer.device)
        with torch.no_grad():
            self.head.weight.zero_()
            self.head.bias.copy_(torch.from_numpy(np.log(rates / (1 - rates)).astype(np.float32)))

    def forward(self, rows: Sequence[Sequence[int]]) -> Any:
        """Return logits [n, heads] of rows of token ids, on the CPU as the labels are."""
        return self.head(self.dropout(self.transformer[0].pooled(rows))).cpu()


def masked_loss(logits: Any, labels: Any, weights: Any) -> Any:
    """Return the weighted mean cross-entropy of observed outcomes; `labels` [n, heads] NaN elsewhere, `weights` [n]."""
    seen = ~torch.isnan(labels)
    every = binary_cross_entropy_with_logits(logits, torch.nan_to_num(labels), reduction="none")
    share = seen * weights[:, None]
    return (every * share).sum() / share.sum().clamp(min=1e-6)


def fine_tune(
    transformer: PooledTransformer,
    train: LabelledTexts,
    valid: LabelledTexts,
    settings: FineTuneSettings,
    *,
    work: Path | None = None,
    report: Callable[[Progress, int], None] = lambda progress, steps: None,
) -> FineTuned:
    """Train `transformer` and new heads on `train`, with early stopping by the log loss on `valid`; deterministic on
    one machine. `work` keeps the state, so the same call resumes it; `report` gets (progress, maximum steps).

    Raises `TrainingDataError` if either has no observed label.
    """
    for name, part in (("train", train), ("valid", valid)):
        if not (~np.isnan(part.labels)).any():
            raise TrainingDataError(f"no {name} row has an observed outcome; nothing can be fine-tuned.")
    rows = {"train": transformer.token_ids(train.texts), "valid": transformer.token_ids(valid.texts)}
    network = OutcomeNetwork(transformer, _rates(train))
    lengths = [len(row) for row in rows["train"]]
    batches = [
        batch
        for epoch in range(settings.epochs)
        for batch in shuffled_batches(lengths, settings.tokens_per_step, (settings.seed, epoch))
    ]
    labels, weights = torch.from_numpy(train.labels), torch.from_numpy(train.weights)

    def loss_of(step: int) -> Any:
        chosen = batches[step]
        return masked_loss(network([rows["train"][i] for i in chosen]), labels[chosen], weights[chosen])

    schedule = Schedule(
        steps=len(batches),
        measure_every=max(1, len(batches) // (settings.epochs * settings.measurements)),
        patience=settings.patience,
        seed=settings.seed,
    )
    loop = ResumableLoop(
        network,
        [(("head.",), settings.head_learning_rate), (("",), settings.learning_rate)],
        schedule,
        key=_key(transformer, rows, train, valid, settings),
        work=work,
    )
    progress = loop.run(
        loss_of, lambda: valid_loss(network, rows["valid"], valid, settings), lambda p: report(p, len(batches))
    )
    weight = network.head.weight.detach().cpu().numpy().T.copy()
    return FineTuned(transformer, weight, network.head.bias.detach().cpu().numpy().copy(), progress)


def valid_loss(
    network: OutcomeNetwork, rows: Sequence[Sequence[int]], part: LabelledTexts, settings: FineTuneSettings
) -> float:
    """Return `masked_loss` over all rows, nats per observed outcome."""
    logits = torch.zeros(len(rows), part.labels.shape[1])
    for batch in batches_by_length([len(row) for row in rows], settings.tokens_per_step):
        logits[batch] = network([rows[i] for i in batch])
    return float(masked_loss(logits, torch.from_numpy(part.labels), torch.from_numpy(part.weights)))


def _rates(part: LabelledTexts) -> Float:
    seen = ~np.isnan(part.labels) * part.weights[:, None]
    rates = (np.nansum(part.labels * part.weights[:, None], axis=0) + 0.5) / (seen.sum(axis=0) + 1.0)
    kept: Float = np.clip(rates, 0.01, 0.99).astype(np.float32)
    return kept


def _key(
    transformer: PooledTransformer,
    rows: dict[str, list[list[int]]],
    train: LabelledTexts,
    valid: LabelledTexts,
    settings: FineTuneSettings,
) -> str:
    digest = hashlib.sha256(msgspec.json.encode([rows, settings]))
    for part in (train, valid):
        digest.update(part.labels.tobytes() + part.weights.tobytes())
    for name, tensor in sorted(transformer.model.state_dict().items()):
        digest.update(name.encode() + tensor.cpu().numpy().tobytes())
    return digest.hexdigest()


def save_checkpoint(folder: Path, model: Any, tokenizer: Any) -> None:
    """Save `model` and `tokenizer` as config.json, model.safetensors and tokenizer.json in `folder`."""
    model.save_pretrained(folder)
    tokenizer.save(str(folder / TOKENIZER))


VALID = 10  # one of so many rows decides when training stops


def train_classes(
    rows: Sequence[LabelledPrompt], checkpoint: Path, target: Path, settings: FineTuneSettings | None = None
) -> None:
    """Fine-tune the checkpoint on `rows` and write the folder `target`, for `load_classes`.

    Raises `CheckpointError` for one that is not served, `TrainingDataError` for too few rows or a `target` that exists.
    """
    servable_config(checkpoint)
    if len(rows) < VALID or target.exists():
        raise TrainingDataError(
            f"{len(rows)} rows for {target}; at least {VALID} are needed, and a folder that is new."
        )
    settings = settings or FineTuneSettings()
    raters = [np.array(row.classes)[:, None] <= np.arange(1, CUTS + 1) for row in rows]
    labels = np.stack([votes.mean(axis=0, dtype=np.float32) for votes in raters])
    turns = [routing_input_of_text(row.prompt).request.turn for row in rows]
    order = np.random.default_rng(settings.seed).permutation(len(rows))
    valid, train = (
        LabelledTexts([turns[i] for i in part], labels[part], np.ones(len(part), np.float32))
        for part in (order[::VALID], np.delete(order, np.s_[::VALID]))
    )
    transformer = PooledTransformer.load(checkpoint)
    tuned = fine_tune(transformer, train, valid, settings)
    save_checkpoint(target, transformer.model, transformer.tokenizer)
    save_classes(target, tuned.head_weight, tuned.head_bias)
