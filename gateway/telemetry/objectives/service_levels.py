"""Recent service levels of each tier: a sliding window in bounded memory, whatever the traffic. Quantiles of any
number of values are each within one percent of the exact one.
"""

import logging
import math
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Literal, TypeVar

import msgspec
import numpy as np

from gateway.base.inference_request import slo_class
from gateway.inference.answer import Answer
from gateway.runtime.peers import Peers
from inference_core.io.files import JSON_ERRORS
from quality.records.record import Record

_ACCURACY = 0.01
_GAMMA = (1 + _ACCURACY) / (1 - _ACCURACY)
_LOG_GAMMA = math.log(_GAMMA)
_LEAST, _MOST = 1e-6, 1e6
_COUNTED_AT_ONCE = 256


class Sketch(msgspec.Struct):
    """Counts on a logarithmic grid (DDSketch, Masson et al. 2019): at most 1,400, for values from a millionth to a
    million; values outside count as the nearest. Sketches merge without loss. `added`: values that are not counted yet,
    fewer than `_COUNTED_AT_ONCE`, since numpy counts many of them in the time that Python takes for a few."""

    counts: dict[int, int] = {}
    counted: int = 0
    sum_counted: float = 0.0
    added: list[float] = []

    def add(self, value: float) -> None:
        """Count a value."""
        self.added.append(value)
        if len(self.added) >= _COUNTED_AT_ONCE:
            self._count()

    def _count(self) -> None:
        if not self.added:
            return
        values, self.added = np.array(self.added), []
        places = np.ceil(np.log(np.clip(values, _LEAST, _MOST)) / _LOG_GAMMA).astype(np.int64)
        for place, count in zip(*(found.tolist() for found in np.unique(places, return_counts=True)), strict=True):
            self.counts[place] = self.counts.get(place, 0) + count
        self.counted += len(values)
        self.sum_counted += float(values.sum())

    @property
    def total(self) -> int:
        """The number of values."""
        return self.counted + len(self.added)

    @property
    def sum(self) -> float:
        """The sum of the values."""
        return self.sum_counted + math.fsum(self.added)

    def merge(self, other: "Sketch") -> None:
        """Add all counts of `other`."""
        for place, count in other.counts.items():
            self.counts[place] = self.counts.get(place, 0) + count
        self.counted += other.counted
        self.sum_counted += other.sum_counted
        self.added += other.added
        if len(self.added) >= _COUNTED_AT_ONCE:
            self._count()

    def quantile(self, share: float) -> float | None:
        """Return the value below which `share` of the values lie; None if empty."""
        return self.quantiles([share])[0]

    def quantiles(self, shares: Sequence[float]) -> list[float | None]:
        """Return the quantiles of ascending `shares`, in one pass."""
        self._count()
        found: list[float | None] = []
        places = iter(sorted(self.counts))
        passed, value = 0, None
        for share in shares:
            rank = share * (self.total - 1)
            while passed <= rank and (place := next(places, None)) is not None:
                passed += self.counts[place]
                value = float(2 * _GAMMA**place / (_GAMMA + 1))
            found.append(value)
        return found

    @property
    def mean(self) -> float | None:
        """The exact mean; None if empty."""
        return self.sum / self.total if self.total else None


log = logging.getLogger(__name__)

Stage = Literal["route", "schedule", "prefill", "decode", "stream"]
STAGES: tuple[Stage, ...] = ("route", "schedule", "prefill", "decode", "stream")
Key = TypeVar("Key", str, int)

SLICES = 10
SLICE_SECONDS = 30.0


class TierServiceLevels(msgspec.Struct):
    """Figures of one tier over a period. Seconds; `ttft_shares`: by class, times to the first token divided by their
    request's limit (`Answer.ttft_limit`). `speed`: decoded tokens per second. `gaps`: between tokens, by bucket of
    `request_metrics.SECONDS`. `failed`: by our own fault. `disputed`: whose server
    reported tokens that cannot be. `below_target`: answers below their quality target because a tier was down.
    `kept` and `classes`: requests of a class that met their
    limit, and all of them."""

    requests: int = 0
    failed: int = 0
    disputed: int = 0
    below_target: int = 0
    cost_usd: float = 0.0
    baseline_usd: float = 0.0
    tokens: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    ttft: Sketch = msgspec.field(default_factory=Sketch)
    ttft_shares: dict[str, Sketch] = {}
    e2e: Sketch = msgspec.field(default_factory=Sketch)
    speed: Sketch = msgspec.field(default_factory=Sketch)
    gaps: dict[int, int] = {}
    stages: dict[str, Sketch] = {}
    kept: dict[str, int] = {}
    classes: dict[str, int] = {}

    def observe(self, answer: Answer, record: Record, gaps: Mapping[int, int]) -> None:
        """Count one finished request."""
        self.requests += 1
        for attempt in record.attempts:
            if attempt.claimed is not None:
                self.disputed += 1
                break
        self.cost_usd += record.cost_usd
        self.baseline_usd += record.baseline_cost_usd
        self.tokens += record.prompt_tokens + record.completion_tokens
        self.prompt_tokens += record.prompt_tokens
        self.cached_tokens += record.cached_tokens
        if record.status != "ok":
            self.failed += record.http_status >= 500
            return
        stamps, timings = answer.stamps, record.timings
        self.e2e.add(timings.e2e_ms / 1e3)
        _sketch(self.stages, "route").add(timings.route_ms / 1e3)
        _sketch(self.stages, "stream").add(max(timings.overhead_ms - timings.route_ms, 0.0) / 1e3)
        if timings.ttft_ms is None or timings.prefill_ms is None or timings.decode_ms is None:
            return
        ttft, limit = timings.ttft_ms / 1e3, answer.ttft_limit
        wanted = slo_class(answer.request.options.slo, answer.request.generation.priority)
        self.ttft.add(ttft)
        _sketch(self.ttft_shares, wanted.name).add(ttft / limit)
        _count(self.classes, wanted.name, 1)
        _count(self.kept, wanted.name, ttft <= limit)
        _sketch(self.stages, "schedule").add(stamps.schedule_seconds)
        _sketch(self.stages, "prefill").add(timings.prefill_ms / 1e3)
        _sketch(self.stages, "decode").add(timings.decode_ms / 1e3)
        if (speed := stamps.tokens_per_second) is not None:
            self.speed.add(speed)
        for place, count in gaps.items():
            _count(self.gaps, place, count)

    def merge(self, other: "TierServiceLevels") -> None:
        """Add all counts of `other`."""
        self.requests += other.requests
        self.failed += other.failed
        self.disputed += other.disputed
        self.below_target += other.below_target
        self.cost_usd += other.cost_usd
        self.baseline_usd += other.baseline_usd
        self.tokens += other.tokens
        self.prompt_tokens += other.prompt_tokens
        self.cached_tokens += other.cached_tokens
        for mine, theirs in (
            (self.ttft, other.ttft),
            (self.e2e, other.e2e),
            (self.speed, other.speed),
        ):
            mine.merge(theirs)
        for sketches, more in ((self.stages, other.stages), (self.ttft_shares, other.ttft_shares)):
            for name, sketch in more.items():
                _sketch(sketches, name).merge(sketch)
        for place, count in other.gaps.items():
            _count(self.gaps, place, count)
        for name, count in other.kept.items():
            _count(self.kept, name, count)
        for name, count in other.classes.items():
            _count(self.classes, name, count)

    @property
    def ttft_share(self) -> Sketch:
        """Of all classes together."""
        every = Sketch()
        for sketch in self.ttft_shares.values():
            every.merge(sketch)
        return every


def _sketch(sketches: dict[str, Sketch], name: str) -> Sketch:
    found = sketches.get(name)
    if found is None:
        found = sketches[name] = Sketch()
    return found


def _count(counts: dict[Key, int], key: Key, more: int) -> None:
    counts[key] = counts.get(key, 0) + more


LevelsByTier = dict[int, TierServiceLevels]


class ServiceLevels:
    """Figures by tier of the last `slices` slices of time; a new slice replaces the oldest."""

    def __init__(
        self,
        slices: int = SLICES,
        slice_seconds: float = SLICE_SECONDS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.window_seconds = slices * slice_seconds
        self._slices: deque[tuple[int, LevelsByTier]] = deque(maxlen=slices)
        self._slice_seconds, self._clock = slice_seconds, clock

    def observe(self, answer: Answer, record: Record, gaps: Mapping[int, int]) -> None:
        """Count one finished request; a cache hit says nothing about a tier."""
        if not record.is_made:
            return
        number = int(self._clock() / self._slice_seconds)
        if not self._slices or self._slices[-1][0] != number:
            self._slices.append((number, {}))
        figures = self._slices[-1][1]
        tier = figures.get(record.tier)
        if tier is None:
            tier = figures[record.tier] = TierServiceLevels()
        tier.observe(answer, record, gaps)

    def count_below_target(self, tier: int) -> None:
        """Count the request that was observed last as an answer below its target."""
        self._slices[-1][1][tier].below_target += 1

    def figures(self) -> LevelsByTier:
        """Return the figures by tier of the window that ends now."""
        oldest = int(self._clock() / self._slice_seconds) - (self._slices.maxlen or 0)
        return merged(figures for number, figures in self._slices if number > oldest)


def merged(parts: Iterable[LevelsByTier]) -> LevelsByTier:
    """Return the sum of all parts by tier; the parts are unchanged."""
    whole: LevelsByTier = {}
    for part in parts:
        for tier, figures in part.items():
            whole.setdefault(tier, TierServiceLevels()).merge(figures)
    return whole


async def levels_of_all(levels: ServiceLevels, peers: Peers | None) -> LevelsByTier:
    """Merge this process's figures with those of the others that answer."""
    own = levels.figures()
    if peers is None:
        return own
    found = [own]
    for worker, reply in (await peers.ask("levels")).items():
        try:
            found.append(msgspec.msgpack.decode(reply, type=LevelsByTier))
        except JSON_ERRORS as error:
            log.warning("worker %d's service levels are left out: %s", worker, error)
    return merged(found)
