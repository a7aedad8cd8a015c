"""How far a way of computing strays from the float reference on real text: perplexity, divergence, agreement."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any, get_args

import numpy as np
from numpy.typing import NDArray

from inference_core.execution.logits_runner import LogitsRunner
from inference_core.kv_cache.arena import allocate_arena
from inference_core.kv_cache.layout import CpuKVDtype
from inference_core.loaders.model_path import resolve_model_path
from inference_core.loaders.open_checkpoint import open_checkpoint
from inference_core.loading.load_core import layout_of, load_runner, use_threads
from inference_core.model_spec import Compute, CoreSpec, ModelSpec
from inference_core.step_plan import ScheduledSequence
from inference_core.tokenization.load_tokenizer import load_tokenizer

Floats = NDArray[np.float64]
Logits = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Variant:
    """One way of computing a model: its arithmetic and the encoding of its KV cache."""

    compute: Compute
    kv_dtype: CpuKVDtype


REFERENCE = Variant("float32", "float32")
VARIANTS = tuple(
    Variant(compute, kv_dtype)
    for compute in ("float32", "bfloat16", "int4", "int4-int8")
    for kv_dtype in get_args(CpuKVDtype)
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Agreement:
    """A variant against the reference, over all positions of a text.

    `perplexity` is the variant's, `perplexity_ratio` over the reference's. `mean_kl` is the divergence of the variant's
    next-token law from the reference's, in nats. `top1` is the share of positions with the same most likely token,
    `cosine` the mean normalised dot product of the logits (SPEC QZ-09), `max_logit_difference` over all logits.
    """

    perplexity: float
    perplexity_ratio: float
    mean_kl: float
    top1: float
    cosine: float
    max_logit_difference: float

    @property
    def passes(self) -> bool:
        """The gate of every quantisation before it may serve: nothing lost that a user could notice (SPEC QZ-09)."""
        return self.cosine > 0.99 and self.perplexity_ratio < 1.01


def prose() -> str:
    """Some pages of English novels and essays in the public domain."""
    return files("inference_core.bench").joinpath("prose.txt").read_text("utf-8")


def bench_quality(
    path: str,
    cache_dir: Path,
    *,
    text: str | None = None,
    variants: tuple[Variant, ...] = VARIANTS,
    tokens: int = 2048,
    window: int = 512,
) -> Iterator[dict[str, Any]]:
    """One row per variant: its names and its `Agreement` with `REFERENCE`.

    The first `tokens` of `text` (default: `prose`) are read in windows of `window`, each from an empty context. The
    reference's logits are kept: tokens x vocabulary x 4 bytes. Raises ModelFileError, and ValueError for a text of
    fewer than two tokens.
    """
    use_threads(None)
    ids = load_tokenizer(resolve_model_path(path)).encode(prose() if text is None else text)[:tokens]
    windows = [ids[start : start + window] for start in range(0, len(ids), window)]
    windows = [part for part in windows if len(part) > 1]
    if not windows:
        raise ValueError(f"the text has {len(ids)} tokens in windows of {window}; at least 2 are needed")
    reference = list(window_logits(path, cache_dir, REFERENCE, windows))
    for variant in variants:
        given = reference if variant == REFERENCE else window_logits(path, cache_dir, variant, windows)
        figures = agreement(windows, reference, given)
        row = {name: round(getattr(figures, name), 6) for name in Agreement.__slots__}
        yield {"compute": variant.compute, "kv_dtype": variant.kv_dtype, **row, "passes": figures.passes}


def window_logits(path: str, cache_dir: Path, variant: Variant, windows: list[list[int]]) -> Iterator[Logits]:
    """Logits [tokens, vocabulary] of each window, every one from an empty cache through the paged path."""
    spec = ModelSpec(name="model", path=path, compute=variant.compute, kv_dtype=variant.kv_dtype)
    layout = layout_of(spec, open_checkpoint(resolve_model_path(path), cache_dir).config)
    blocks = max(-(-len(part) // spec.block_size) for part in windows)
    core = CoreSpec(models=[spec])
    slabs = -(-blocks // layout.blocks_per_slab(core.slab_bytes))
    runner = load_runner(spec, core, allocate_arena(slabs * core.slab_bytes), cache_dir)
    for part in windows:
        yield teacher_forced_logits(runner, part)


def teacher_forced_logits(runner: LogitsRunner, token_ids: list[int]) -> Logits:
    """Logits [tokens, vocabulary] after each token of one sequence that fills the arena's first blocks."""
    table = list(range(-(-len(token_ids) // runner.layout.block_size)))
    sequence = ScheduledSequence("text", token_ids, 0, table, None)
    logits: Logits = runner.logits([sequence], list(range(len(token_ids)))).numpy().copy()
    return logits


def agreement(windows: list[list[int]], reference: Iterable[Logits], given: Iterable[Logits]) -> Agreement:
    """Compare logits [tokens, vocabulary] of each window."""
    tally = AgreementTally()
    for tokens, exact, other in zip(windows, reference, given, strict=True):
        tally.add(tokens, exact, other)
    return tally.agreement()


class AgreementTally:
    """Windows of two ways of computing, one after another, so that no logits need to be kept."""

    def __init__(self) -> None:
        self._expected: list[Floats] = []
        self._losses: list[Floats] = []
        self._divergence: list[Floats] = []
        self._same: list[NDArray[np.bool_]] = []
        self._cosine: list[Floats] = []
        self._furthest = 0.0

    def add(self, tokens: list[int], exact: Logits, other: Logits) -> None:
        """Logits [tokens, vocabulary] of the reference and of the other; a window's last row predicts nothing known."""
        law, other_law = log_softmax(exact), log_softmax(other)
        known = (np.arange(len(tokens) - 1), np.array(tokens[1:]))
        self._expected.append(-law[known])
        self._losses.append(-other_law[known])
        self._divergence.append((np.exp(law) * (law - other_law)).sum(axis=1))
        self._same.append(exact.argmax(axis=1) == other.argmax(axis=1))
        self._cosine.append(normalised_dot(exact, other))
        self._furthest = max(self._furthest, float(np.abs(exact - other).max()))

    def agreement(self) -> Agreement:
        """Over all windows so far."""
        loss = float(np.concatenate(self._losses).mean())
        return Agreement(
            perplexity=float(np.exp(loss)),
            perplexity_ratio=float(np.exp(loss - np.concatenate(self._expected).mean())),
            mean_kl=float(np.concatenate(self._divergence).mean()),
            top1=float(np.concatenate(self._same).mean()),
            cosine=float(np.concatenate(self._cosine).mean()),
            max_logit_difference=self._furthest,
        )


def log_softmax(logits: Logits) -> Floats:
    """Natural log-probabilities [rows, vocabulary], in float64."""
    shifted = logits.astype(np.float64) - logits.max(axis=1, keepdims=True)
    law: Floats = shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))
    return law


def normalised_dot(a: Logits, b: Logits) -> Floats:
    """Cosine of each pair of rows [rows]."""
    x, y = a.astype(np.float64), b.astype(np.float64)
    cosine: Floats = (x * y).sum(axis=1) / (np.linalg.norm(x, axis=1) * np.linalg.norm(y, axis=1))
    return cosine
