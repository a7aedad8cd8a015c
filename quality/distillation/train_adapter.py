"""Trains an adapter for a model and writes it as a PEFT folder, but only if it is better on held-out prompts."""

import shutil
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import msgspec
import torch
from safetensors.torch import save_file

from inference_core.loaders.model_path import resolve_model_path
from inference_core.loaders.open_checkpoint import open_checkpoint
from inference_core.lora.adapter import adapter_targets
from inference_core.lora.adapter_file import CONFIG_FILE, WEIGHTS_FILE, read_adapter
from inference_core.model_config import ModelConfig
from inference_core.tokenization.load_tokenizer import load_tokenizer
from quality.distillation.examples import Example, Split, encoded_split
from quality.distillation.network import AdaptedDecoder, LowRank
from quality.distillation.train import Outcome, Progress, Recipe, train

RECORD_FILE = "training.json"
LEAST_HELD_OUT = 8
"""Prompts to measure with, below which a gain is hard to distinguish from chance."""


class DistillationError(ValueError):
    """An adapter cannot be trained from what was given. Change the examples, the teacher or the folder."""


class NoGainError(ValueError):
    """The adapter is not better on held-out prompts, so nothing was written. `record` holds the figures."""

    def __init__(self, record: "TrainingRecord") -> None:
        outcome = record.outcome
        super().__init__(
            f"the adapter is not better on {record.held_out} held-out answers: the {record.figure} falls by "
            f"{outcome.gain:.4f} with a standard error of {outcome.gain_error:.4f}; nothing is written. Give more "
            "examples, or another learning rate or number of epochs"
        )
        self.record = record


class NamedModel(msgspec.Struct, frozen=True, kw_only=True):
    """A model by its name in the catalogue and its path there."""

    name: str
    path: str


class TrainingRecord(msgspec.Struct, frozen=True, kw_only=True):
    """How an adapter came to be, without texts; stored next to it. `base_weights`: content hash of the model's files.
    `training`, `held_out`, `left_out`: numbers of examples; the last were too long, or had no prompt or turns that the
    chat template refuses. `created_at`: epoch seconds."""

    base: NamedModel
    base_weights: str
    teacher: NamedModel | None
    source: str
    training: int
    held_out: int
    left_out: int
    recipe: Recipe
    outcome: Outcome
    created_at: float

    @property
    def figure(self) -> str:
        """What was trained on, and decides whether the adapter is better."""
        return "loss" if self.teacher is None else "KL divergence"


def train_adapter(
    base: NamedModel,
    folder: Path,
    examples: Sequence[Example],
    recipe: Recipe,
    *,
    source: str,
    held_out: float = 0.1,
    max_tokens: int = 512,
    teacher: NamedModel | None = None,
    device: str = "cpu",
    cache_dir: Path | None = None,
    progress: Progress = lambda stage, share: None,
) -> TrainingRecord:
    """Train an adapter for `base` on `examples` and write it to `folder`, which must not exist (SPEC TI-10).

    `held_out`: the share of prompts to measure with. `max_tokens`: of prompt and answer together; longer examples are
    left out. `teacher`: a model of the same vocabulary whose distribution is learned instead of the answers' tokens
    alone. `source`: of the examples, for the record. `device`: torch's name of it.

    Raises NoGainError if the adapter is not better on held-out prompts with 95% confidence, DistillationError for
    examples or a teacher that cannot be used and a folder that exists, and ModelFileError.
    """
    if folder.exists():
        raise DistillationError(f"{folder} exists; adapters are not overwritten, choose another folder")
    checkpoint = open_checkpoint(resolve_model_path(base.path), cache_dir)
    tokenizer = load_tokenizer(resolve_model_path(base.path))
    longest = min(max_tokens, checkpoint.config.max_position)
    split = encoded_split(examples, tokenizer, held_out=held_out, max_tokens=longest)
    _require_enough(split, longest)
    dtype = torch.float32 if recipe.base == "float32" else torch.bfloat16
    progress("loading", 0.0)
    guide = None if teacher is None else _teacher_network(teacher, base, dtype, longest, cache_dir)
    low = LowRank(recipe.rank, recipe.alpha / recipe.rank)
    student = AdaptedDecoder(checkpoint, low, dtype, recipe.seed, longest)
    outcome = train(student, split, recipe, torch.device(device), guide, progress)
    record = TrainingRecord(
        base=base,
        base_weights=checkpoint.fingerprint,
        teacher=teacher,
        source=source,
        training=len(split.training),
        held_out=len(split.held_out),
        left_out=split.left_out,
        recipe=recipe,
        outcome=outcome,
        created_at=time.time(),
    )
    if not outcome.is_better:
        raise NoGainError(record)
    _write(folder, student, record)
    return record


def _teacher_network(
    teacher: NamedModel, base: NamedModel, dtype: torch.dtype, longest: int, cache_dir: Path | None
) -> AdaptedDecoder:
    vocabularies = [load_tokenizer(resolve_model_path(model.path)).vocabulary for model in (teacher, base)]
    if vocabularies[0] != vocabularies[1]:
        raise DistillationError(f"{teacher.name} and {base.name} differ in vocabulary; choose another teacher")
    checkpoint = open_checkpoint(resolve_model_path(teacher.path), cache_dir)
    if checkpoint.config.max_position < longest:
        raise DistillationError(
            f"{teacher.name} reads {checkpoint.config.max_position} tokens; examples may have {longest}: allow fewer"
        )
    return AdaptedDecoder(checkpoint, LowRank(0, 0.0), dtype, longest=longest)


def _require_enough(split: Split, longest: int) -> None:
    if len(split.held_out) < LEAST_HELD_OUT or not split.training:
        reasons = f"no prompt, more than {longest} tokens, or turns that the chat template refuses"
        left_out = f" ({split.left_out} have {reasons})" if split.left_out else ""
        raise DistillationError(
            f"{len(split.training)} examples to train on and {len(split.held_out)} to measure with{left_out}; at least "
            f"1 and {LEAST_HELD_OUT} are needed: give more examples, or hold out a larger share"
        )


def _write(folder: Path, student: AdaptedDecoder, record: TrainingRecord) -> None:
    """Write the whole folder at once; only its owner may read it, because answers of users may show in an adapter."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    unfinished = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
    try:
        save_file(student.adapter_tensors(), unfinished / WEIGHTS_FILE)
        (unfinished / CONFIG_FILE).write_bytes(_json(_peft_config(record, student.config)))
        (unfinished / RECORD_FILE).write_bytes(_json(record))
        read_adapter(unfinished, student.config)
        unfinished.rename(folder)
    except BaseException:
        shutil.rmtree(unfinished, ignore_errors=True)
        raise


def _peft_config(record: TrainingRecord, config: ModelConfig) -> dict[str, object]:
    return {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": record.base.path,
        "r": record.recipe.rank,
        "lora_alpha": record.recipe.alpha,
        "lora_dropout": 0.0,
        "target_modules": list(adapter_targets(config)),
        "bias": "none",
        "fan_in_fan_out": False,
        "init_lora_weights": True,
        "inference_mode": True,
    }


def _json(value: object) -> bytes:
    return msgspec.json.format(msgspec.json.encode(value), indent=2)
