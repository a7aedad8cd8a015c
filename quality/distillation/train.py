"""Trains an adapter for a model and writes it as a PEFT folder, but only if it is better on held-out prompts.

The training loop: AdamW over the adapter's factors, loss on the answers alone, measured on held-out prompts."""

import math
import random
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec
import torch
from safetensors.torch import save_file
from torch.nn import functional

from inference_core.loaders.hub_model import resolve_model_path
from inference_core.loaders.open_checkpoint import open_checkpoint
from inference_core.lora.adapter import adapter_targets
from inference_core.lora.adapter_file import CONFIG_FILE, WEIGHTS_FILE, read_adapter
from inference_core.model_config import ModelConfig
from inference_core.tokenization.load_tokenizer import load_tokenizer
from quality.distillation.examples import Example, Split, TokenExample, encoded_split
from quality.distillation.network import AdaptedDecoder, LowRank
from quality.distillation.recipe import Recipe

Progress = Callable[[str, float], None]
# One-sided 95%: how far a mean gain must be from zero in standard errors.
_CONFIDENT = 1.645


class HeldOut(msgspec.Struct, frozen=True, kw_only=True):
    """What a model makes of the held-out answers, mean over examples."""

    loss: float
    """Nats per token of the wanted answer, the end token included."""
    agreement: float
    """The share of its tokens that are the model's most likely ones."""
    kl: float | None = None
    """With a teacher, the divergence (teacher || model) in nats per token."""
    teacher_agreement: float | None = None
    """With a teacher, the share of places with the same most likely token."""


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """Held-out figures before and after."""

    before: HeldOut
    after: HeldOut
    gain: float
    """The mean fall of the trained figure (the KL with a teacher, else the loss) per example."""
    gain_error: float
    """Standard error of the gain over examples."""
    steps: int
    tokens: int
    seconds: float
    first_loss: float
    """The trained figure over the first tenth of the steps."""
    last_loss: float
    """The trained figure over the last tenth of the steps."""

    @property
    def is_better(self) -> bool:
        """Whether the gain is above zero with 95% confidence. A figure that is no number is none."""
        return self.gain - _CONFIDENT * self.gain_error > 0


class _Batch(NamedTuple):
    """A batch of examples."""

    token_ids: torch.Tensor
    rows: tuple[torch.Tensor, torch.Tensor]
    """Where an answer's token comes next, as (sequence [N], position [N])."""
    targets: torch.Tensor
    """[N]: those tokens."""


class _Figures(NamedTuple):
    """Per example [n], mean over its answer's tokens; the last two are empty without a teacher."""

    loss: torch.Tensor
    agreement: torch.Tensor
    kl: torch.Tensor
    teacher_agreement: torch.Tensor


def train(
    student: AdaptedDecoder,
    split: Split,
    recipe: Recipe,
    device: torch.device,
    teacher: AdaptedDecoder | None = None,
    progress: Progress = lambda stage, share: None,
) -> Outcome:
    """Train the factors of `student` on `split.training` and measure it on `split.held_out` before and after.

    With a `teacher` of the same vocabulary the loss is the KL divergence from its distribution at each token of the
    answers (Hinton et al. 2015), else the answers' own cross-entropy.
    """
    student.to(device)
    if teacher is not None:
        teacher.to(device)
    before = _measured(student, teacher, split.held_out, recipe.batch, device)
    began = time.perf_counter()
    losses, tokens = [], 0
    steps = recipe.epochs * math.ceil(len(split.training) / recipe.batch)
    optimizer = torch.optim.AdamW(student.parameters(), lr=recipe.learning_rate, weight_decay=0.0)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 - step / steps)
    for examples in _batches(split.training, recipe):
        batch = _batch(examples, device)
        logits = student(batch.token_ids, batch.rows)
        loss = _loss(logits, batch, teacher).mean()
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(student.parameters(), recipe.clip)
        optimizer.step()
        schedule.step()
        losses.append(float(loss.detach()))
        tokens += sum(example.tokens for example in examples)
        progress("training", len(losses) / steps)
    seconds = time.perf_counter() - began
    after = _measured(student, teacher, split.held_out, recipe.batch, device)
    gains = (before.loss - after.loss) if teacher is None else (before.kl - after.kl)
    tenth = max(len(losses) // 10, 1)
    return Outcome(
        before=_means(before),
        after=_means(after),
        gain=float(gains.mean()),
        gain_error=float(gains.std() / math.sqrt(len(gains))) if len(gains) > 1 else math.inf,
        steps=steps,
        tokens=tokens,
        seconds=seconds,
        first_loss=sum(losses[:tenth]) / tenth,
        last_loss=sum(losses[-tenth:]) / tenth,
    )


def _batches(examples: Sequence[TokenExample], recipe: Recipe) -> Iterator[list[TokenExample]]:
    """All examples in another order each epoch."""
    order, draws = list(examples), random.Random(recipe.seed)
    for _ in range(recipe.epochs):
        draws.shuffle(order)
        for first in range(0, len(order), recipe.batch):
            yield order[first : first + recipe.batch]


def _batch(examples: Sequence[TokenExample], device: torch.device) -> _Batch:
    """`examples` side by side, filled up at their ends, where nothing reads them."""
    sequences = [[*example.prompt, *example.answer] for example in examples]
    token_ids = torch.zeros(len(examples), max(map(len, sequences)), dtype=torch.int64)
    places: list[tuple[int, int]] = []
    for number, (example, sequence) in enumerate(zip(examples, sequences, strict=True)):
        token_ids[number, : len(sequence)] = torch.tensor(sequence)
        places += [(number, at) for at in range(len(example.prompt) - 1, len(sequence) - 1)]
    sequence_of, at = (torch.tensor(part) for part in zip(*places, strict=True))
    targets = token_ids[sequence_of, at + 1]
    return _Batch(token_ids.to(device), (sequence_of.to(device), at.to(device)), targets.to(device))


def _loss(logits: torch.Tensor, batch: _Batch, teacher: AdaptedDecoder | None) -> torch.Tensor:
    """The trained figure at every place of the answers, float32 [N]."""
    if teacher is None:
        return functional.cross_entropy(logits, batch.targets, reduction="none")
    with torch.no_grad():
        wanted = teacher(batch.token_ids, batch.rows)
    return _divergence(wanted, logits)


def _divergence(wanted: torch.Tensor, logits: torch.Tensor) -> torch.Tensor:
    """KL(wanted || logits) [N] over the tokens that both know; files pad vocabularies differently."""
    shared_size = min(wanted.shape[1], logits.shape[1])
    target, predicted = wanted[:, :shared_size].log_softmax(-1), logits[:, :shared_size].log_softmax(-1)
    return functional.kl_div(predicted, target, reduction="none", log_target=True).sum(-1)


def _measured(
    student: AdaptedDecoder,
    teacher: AdaptedDecoder | None,
    held_out: Sequence[TokenExample],
    size: int,
    device: torch.device,
) -> _Figures:
    batch_figures: list[list[torch.Tensor]] = []
    for first in range(0, len(held_out), size):
        batch = _batch(held_out[first : first + size], device)
        with torch.no_grad():
            logits = student(batch.token_ids, batch.rows)
            figures = [
                functional.cross_entropy(logits, batch.targets, reduction="none"),
                (logits.argmax(-1) == batch.targets).float(),
            ]
            if teacher is not None:
                wanted = teacher(batch.token_ids, batch.rows)
                figures += [_divergence(wanted, logits), (wanted.argmax(-1) == logits.argmax(-1)).float()]
        batch_figures.append([_by_example(figure, batch) for figure in figures])
    columns = [torch.cat(column) for column in zip(*batch_figures, strict=True)]
    nothing = torch.empty(0)
    return _Figures(*columns, *[nothing] * (4 - len(columns)))


def _by_example(figure: torch.Tensor, batch: _Batch) -> torch.Tensor:
    """The mean of `figure` [N] over each sequence's places, on the CPU."""
    sequence_of, figure = batch.rows[0].cpu(), figure.cpu().double()
    sums = torch.zeros(len(batch.token_ids), dtype=torch.float64).index_add_(0, sequence_of, figure)
    return sums / torch.bincount(sequence_of, minlength=len(batch.token_ids))


def _means(figures: _Figures) -> HeldOut:
    has_teacher = len(figures.kl) > 0
    return HeldOut(
        loss=float(figures.loss.mean()),
        agreement=float(figures.agreement.mean()),
        kl=float(figures.kl.mean()) if has_teacher else None,
        teacher_agreement=float(figures.teacher_agreement.mean()) if has_teacher else None,
    )


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
    """How an adapter came to be, without texts; stored next to it."""

    base: NamedModel
    base_weights: str
    """Content hash of the model's files."""
    teacher: NamedModel | None
    source: str
    training: int
    """Number of examples that trained."""
    held_out: int
    """Number of examples that measured."""
    left_out: int
    """Number of examples that were too long, or had no prompt or turns that the chat template refuses."""
    recipe: Recipe
    outcome: Outcome
    created_at: float
    """Epoch seconds."""

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
    # Only its owner may read it, because answers of users may show in an adapter.
    files = {
        CONFIG_FILE: json_bytes(peft_config(base.path, recipe.rank, recipe.alpha, student.config)),
        RECORD_FILE: json_bytes(record),
    }
    write_adapter(folder, student.adapter_tensors(), files, student.config)
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


def write_adapter(folder: Path, tensors: dict[str, torch.Tensor], files: dict[str, bytes], config: ModelConfig) -> None:
    """Write the new PEFT folder at once: weights under PEFT's names, and `files` by name, among them its settings. Only
    its owner may read it. Raises ModelFileError, and writes nothing, if it does not fit a `config` model."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    unfinished = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
    try:
        save_file(tensors, unfinished / WEIGHTS_FILE)
        for name, content in files.items():
            (unfinished / name).write_bytes(content)
        read_adapter(unfinished, config)
        unfinished.rename(folder)
    except BaseException:
        shutil.rmtree(unfinished, ignore_errors=True)
        raise


def peft_config(base: str, rank: int, alpha: float, config: ModelConfig) -> dict[str, object]:
    """PEFT's settings of an adapter of all linear layers but the head, over the model at `base`."""
    return {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": base,
        "r": rank,
        "lora_alpha": alpha,
        "lora_dropout": 0.0,
        "target_modules": list(adapter_targets(config)),
        "bias": "none",
        "fan_in_fan_out": False,
        "init_lora_weights": True,
        "inference_mode": True,
    }


def json_bytes(value: object) -> bytes:
    """`value` as indented JSON."""
    return msgspec.json.format(msgspec.json.encode(value), indent=2)
