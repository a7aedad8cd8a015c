"""The training loop: AdamW over the adapter's factors, loss on the answers alone, measured on held-out prompts."""

import math
import random
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Literal, NamedTuple

import msgspec
import torch
from torch.nn import functional

from quality.distillation.examples import Split, TokenExample
from quality.distillation.network import AdaptedDecoder

Progress = Callable[[str, float], None]
BaseType = Literal["bfloat16", "float32"]
# One-sided 95%: how far a mean gain must be from zero in standard errors.
_CONFIDENT = 1.645


class Recipe(msgspec.Struct, frozen=True, kw_only=True):
    """How an adapter is trained: all linear layers but the head, frozen base weights of type `base`, float32 factors,
    AdamW without decay, the gradient's norm clipped to `clip`, a learning rate that falls linearly to zero.

    `batch`: examples per step. `epochs`: how often each example is seen.
    """

    rank: int = 16
    alpha: float = 32.0
    learning_rate: float = 2e-3
    clip: float = 1.0
    epochs: int = 1
    batch: int = 8
    base: BaseType = "bfloat16"
    seed: int = 0


class HeldOut(msgspec.Struct, frozen=True, kw_only=True):
    """What a model makes of the held-out answers, mean over examples. `loss`: nats per token of the wanted answer, the
    end token included. `agreement`: the share of its tokens that are the model's most likely ones. With a teacher: `kl`
    (teacher || model) in nats per token, and `teacher_agreement`, the share of places with the same most likely token.
    """

    loss: float
    agreement: float
    kl: float | None = None
    teacher_agreement: float | None = None


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """Held-out figures before and after. `gain`: the mean fall of the trained figure (the KL with a teacher, else the
    loss) per example, `gain_error` its standard error over examples. `first_loss`, `last_loss`: of the trained figure
    over the first and the last tenth of the steps."""

    before: HeldOut
    after: HeldOut
    gain: float
    gain_error: float
    steps: int
    tokens: int
    seconds: float
    first_loss: float
    last_loss: float

    @property
    def is_better(self) -> bool:
        """Whether the gain is above zero with 95% confidence. A figure that is no number is none."""
        return self.gain - _CONFIDENT * self.gain_error > 0


class _Batch(NamedTuple):
    """`rows`: where an answer's token comes next, as (sequence [N], position [N]); `targets` [N]: those tokens."""

    token_ids: torch.Tensor
    rows: tuple[torch.Tensor, torch.Tensor]
    targets: torch.Tensor


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
    known = min(wanted.shape[1], logits.shape[1])
    target, given = wanted[:, :known].log_softmax(-1), logits[:, :known].log_softmax(-1)
    return functional.kl_div(given, target, reduction="none", log_target=True).sum(-1)


def _measured(
    student: AdaptedDecoder,
    teacher: AdaptedDecoder | None,
    held_out: Sequence[TokenExample],
    size: int,
    device: torch.device,
) -> _Figures:
    found: list[list[torch.Tensor]] = []
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
        found.append([_by_example(figure, batch) for figure in figures])
    columns = [torch.cat(column) for column in zip(*found, strict=True)]
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
