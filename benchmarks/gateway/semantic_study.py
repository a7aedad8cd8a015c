"""What a semantic cache would do: how often the answer to a prompt near enough to another would answer that one too."""

import random
from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from benchmarks.gateway.prompt_edits import EDITS, PromptEdit, words_of
from classifier.features.routing_input import routing_input_of_text
from classifier.model.outcome_model import OutcomeModel
from gateway.inference.cache.gist import gist
from gateway.inference.cache.knobs import CacheKnobs
from quality.estimates.upgrade_rate import Share, wilson_interval

THRESHOLDS = (0.8, 0.9, 0.95, 0.97, 0.98, 0.99, 0.995)
Vectors = npt.NDArray[np.float32]
ROWS_AT_ONCE = 512


class PromptPair(msgspec.Struct, frozen=True):
    """Two prompts that are alike."""

    id: str
    a: str
    b: str


class ThresholdRow(msgspec.Struct, frozen=True, kw_only=True):
    """Of all pairs of a kind, those that a cosine of `threshold` or more would answer from each other; `_guarded`:
    where the gists have to be equal besides."""

    threshold: float
    same: Share
    same_guarded: Share
    different: Share
    different_guarded: Share
    others: Share
    others_guarded: Share


class EditRow(msgspec.Struct, frozen=True, kw_only=True):
    """Of the prompts that could be edited so, those whose edited form would get the answer to the prompt."""

    edit: str
    harmless: bool
    near: Share
    guarded: Share


class SemanticStudy(msgspec.Struct, frozen=True, kw_only=True):
    """`same` and `different`: pairs by whether one answer does for both. `others`: prompts of which none stands for
    another, each against all others. `edits`: of these prompts, at `threshold`."""

    classifier: str
    thresholds: list[ThresholdRow]
    threshold: float
    edits: list[EditRow]


def read_pairs(path: Path) -> list[PromptPair]:
    """JSON lines with `id`, `a` and `b`, without those whose prompts are equal: they need no semantic cache. Raises
    `msgspec.MsgspecError` for other lines."""
    pairs = msgspec.json.Decoder(PromptPair).decode_lines(path.read_bytes())
    return [pair for pair in pairs if pair.a != pair.b]


def semantic_study(
    model: OutcomeModel,
    pairs: Sequence[PromptPair],
    different: Collection[str],
    others: Sequence[str] = (),
    thresholds: Iterable[float] = THRESHOLDS,
    *,
    threshold: float | None = None,
    seed: int = 7,
) -> SemanticStudy:
    """`different`: ids of pairs of which each prompt wants an answer of its own. `threshold`: of the edits, by default
    the cache's own; `seed`: of what is edited."""
    threshold = CacheKnobs().semantic_threshold if threshold is None else threshold
    same = _judged(model, [(pair.a, pair.b) for pair in pairs if pair.id not in different])
    near = _judged(model, [(pair.a, pair.b) for pair in pairs if pair.id in different])
    apart = _nearest(_vectors(model, others), [gist(prompt) for prompt in others])
    rows = [
        ThresholdRow(
            threshold=bound,
            same=_near(same, bound),
            same_guarded=_guarded(same, bound),
            different=_near(near, bound),
            different_guarded=_guarded(near, bound),
            others=_near(apart, bound),
            others_guarded=_guarded(apart, bound),
        )
        for bound in thresholds
    ]
    edits = [_edited(model, others, edit, threshold, random.Random(seed)) for edit in EDITS if others]
    return SemanticStudy(classifier=model.version, thresholds=rows, threshold=threshold, edits=edits)


class _Judged(NamedTuple):
    """Cosine to the nearest prompt, and to the nearest of the same gist; -1 where there is none."""

    cosine: float
    same_gist: float


def _judged(model: OutcomeModel, pairs: Sequence[tuple[str, str]]) -> list[_Judged]:
    cosines = [float(np.prod(_vectors(model, pair), axis=0).sum()) for pair in pairs]
    return [
        _Judged(cosine, cosine if gist(a) == gist(b) else -1.0) for cosine, (a, b) in zip(cosines, pairs, strict=True)
    ]


def _nearest(vectors: Vectors, gists: Sequence[str]) -> list[_Judged]:
    """Each prompt against all others, in any order."""
    places: dict[str, list[int]] = defaultdict(list)
    for place, one in enumerate(gists):
        places[one].append(place)
    found: list[_Judged] = []
    for start in range(0, len(gists), ROWS_AT_ONCE):
        cosines = vectors[start : start + ROWS_AT_ONCE] @ vectors.T
        for row, others in enumerate(cosines):
            others[start + row] = -1.0
            found.append(_Judged(float(others.max()), float(others[places[gists[start + row]]].max())))
    return found


def _edited(
    model: OutcomeModel, prompts: Sequence[str], edit: PromptEdit, threshold: float, rng: random.Random
) -> EditRow:
    words = [word for prompt in prompts for word in words_of(prompt)]
    edited = [(prompt, edit.edit(prompt, rng, words)) for prompt in prompts]
    judged = _judged(model, [(prompt, other) for prompt, other in edited if other is not None])
    return EditRow(
        edit=edit.name, harmless=edit.harmless, near=_near(judged, threshold), guarded=_guarded(judged, threshold)
    )


def _near(judged: Sequence[_Judged], threshold: float) -> Share:
    return wilson_interval(sum(one.cosine >= threshold for one in judged), len(judged))


def _guarded(judged: Sequence[_Judged], threshold: float) -> Share:
    return wilson_interval(sum(one.same_gist >= threshold for one in judged), len(judged))


def _vectors(model: OutcomeModel, prompts: Sequence[str]) -> Vectors:
    """Unit vectors [n, d] of what the classifier sees of the prompts."""
    vectors = [model.encode(routing_input_of_text(prompt)).embedding for prompt in prompts]
    return np.stack(vectors).astype(np.float32) if vectors else np.empty((0, 0), np.float32)
