"""Recent service levels of each tier: a sliding window in bounded memory, whatever the traffic. Quantiles of any
number of values are each within one percent of the exact one.
"""

import logging
import math
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from operator import le
from typing import Literal, NamedTuple, TypeVar

import msgspec
import numpy as np

from gateway.runtime.peers import Peers
from inference_core.io.files import JSON_ERRORS

_ACCURACY = 0.01
_GAMMA = (1 + _ACCURACY) / (1 - _ACCURACY)
_LOG_GAMMA = math.log(_GAMMA)
_LEAST, _MOST = 1e-6, 1e6
_COUNTED_AT_ONCE = 256


class Sketch(msgspec.Struct):
    """Counts on a logarithmic grid (DDSketch, Masson et al. 2019): at most 1,400, for values from a millionth to a
    million; values outside count as the nearest. Sketches merge without loss.
    """

    counts: dict[int, int] = {}
    counted: int = 0
    sum_counted: float = 0.0
    added: list[float] = []
    """Values that are not counted yet, fewer than `_COUNTED_AT_ONCE`: numpy counts many of them in the time that Python
    takes for a few.
    """

    def add(self, values: Iterable[float]) -> None:
        self.added += values
        if len(self.added) >= _COUNTED_AT_ONCE:
            self._count()

    def _count(self) -> None:
        if not self.added:
            return
        values, self.added = np.array(self.added), []
        buckets = np.ceil(np.log(np.clip(values, _LEAST, _MOST)) / _LOG_GAMMA).astype(np.int64)
        for bucket, count in zip(*(array.tolist() for array in np.unique(buckets, return_counts=True)), strict=True):
            self.counts[bucket] = self.counts.get(bucket, 0) + count
        self.counted += len(values)
        self.sum_counted += float(values.sum())

    @property
    def total(self) -> int:
        return self.counted + len(self.added)

    @property
    def sum(self) -> float:
        return self.sum_counted + math.fsum(self.added)

    def merge(self, other: "Sketch") -> None:
        for bucket, count in other.counts.items():
            self.counts[bucket] = self.counts.get(bucket, 0) + count
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
        quantiles: list[float | None] = []
        buckets = iter(sorted(self.counts))
        passed, value = 0, None
        for share in shares:
            rank = share * (self.total - 1)
            while passed <= rank and (bucket := next(buckets, None)) is not None:
                passed += self.counts[bucket]
                value = float(2 * _GAMMA**bucket / (_GAMMA + 1))
            quantiles.append(value)
        return quantiles

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


class Alike(NamedTuple):
    """What finished requests have in common that are counted together."""

    tier: int
    model: str
    api: str
    status: str
    is_made: bool
    """See `Record.is_made`."""
    is_our_fault: bool
    """Whether the HTTP status is a server's error."""
    is_usual: bool
    """Whether the tier's one attempt gave the answer, and there is nothing more to say."""
    cache: str | None
    finish_reason: str | None
    key_id: str | None
    decided: int
    """The tier of their decision."""
    kind: str
    """The kind of their prediction."""
    slo: str | None
    """Their class of service; None for those that failed, or whose phases are not known."""

    @property
    def is_timed(self) -> bool:
        """Whether their times say something of the tier."""
        return self.status == "ok" and self.is_made


class Figures(NamedTuple):
    """The figures of requests that are alike, each with one number per request: tokens, US dollars and seconds. Those
    from `ttft` on are only of requests with a class of service.
    """

    prompt_tokens: tuple[int, ...]
    answer_tokens: tuple[int, ...]
    cached_tokens: tuple[int, ...]
    cost_usd: tuple[float, ...]
    baseline_usd: tuple[float, ...]
    route: tuple[float, ...]
    overhead: tuple[float, ...]
    e2e: tuple[float, ...]
    queue: tuple[float, ...]
    ttft: tuple[float, ...] = ()
    prefill: tuple[float, ...] = ()
    decode: tuple[float, ...] = ()
    ttft_limit: tuple[float, ...] = ()
    """See `Answer.ttft_limit`."""
    schedule: tuple[float, ...] = ()
    """See `Stamps`."""
    speed: tuple[float | None, ...] = ()
    """Decoded tokens per second, None without a second token."""

    @property
    def ttft_shares(self) -> list[float]:
        """Times to the first token divided by their limits."""
        return [ttft / limit for ttft, limit in zip(self.ttft, self.ttft_limit, strict=True)]

    @property
    def speeds(self) -> list[float]:
        """Those that there are."""
        return [speed for speed in self.speed if speed is not None]


class TierServiceLevels(msgspec.Struct):
    """Figures of one tier over a period. Seconds."""

    requests: int = 0
    failed: int = 0
    """Requests that failed by our own fault."""
    disputed: int = 0
    """Requests whose server reported tokens that cannot be."""
    below_target: int = 0
    """Answers below their quality target because a tier was down."""
    cost_usd: float = 0.0
    baseline_usd: float = 0.0
    tokens: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    ttft: Sketch = msgspec.field(default_factory=Sketch)
    ttft_shares: dict[str, Sketch] = {}
    """By class, times to the first token divided by their request's limit (`Answer.ttft_limit`)."""
    e2e: Sketch = msgspec.field(default_factory=Sketch)
    speed: Sketch = msgspec.field(default_factory=Sketch)
    """Decoded tokens per second."""
    gaps: dict[int, int] = {}
    """Numbers of gaps between tokens, by bucket of `request_metrics.SECONDS`."""
    stages: dict[str, Sketch] = {}
    kept: dict[str, int] = {}
    """By class, the requests that met their limit."""
    classes: dict[str, int] = {}
    """By class, all requests."""

    def count(self, alike: "Alike", figures: "Figures", gaps: Mapping[int, int]) -> None:
        """Count finished requests, with the gaps between their tokens by bucket."""
        requests = len(figures.prompt_tokens)
        self.requests += requests
        self.cost_usd = sum(figures.cost_usd, self.cost_usd)
        self.baseline_usd = sum(figures.baseline_usd, self.baseline_usd)
        prompt_tokens = sum(figures.prompt_tokens)
        self.tokens += prompt_tokens + sum(figures.answer_tokens)
        self.prompt_tokens += prompt_tokens
        self.cached_tokens += sum(figures.cached_tokens)
        if alike.status != "ok":
            self.failed += requests if alike.is_our_fault else 0
            return
        self.e2e.add(figures.e2e)
        _sketch(self.stages, "route").add(figures.route)
        streamed = [max(ours - route, 0.0) for ours, route in zip(figures.overhead, figures.route, strict=True)]
        _sketch(self.stages, "stream").add(streamed)
        if alike.slo is None:
            return
        shares = figures.ttft_shares
        self.ttft.add(figures.ttft)
        _sketch(self.ttft_shares, alike.slo).add(shares)
        _count(self.classes, alike.slo, requests)
        _count(self.kept, alike.slo, sum(map(le, figures.ttft, figures.ttft_limit)))
        _sketch(self.stages, "schedule").add(figures.schedule)
        _sketch(self.stages, "prefill").add(figures.prefill)
        _sketch(self.stages, "decode").add(figures.decode)
        self.speed.add(figures.speeds)
        for bucket, count in gaps.items():
            _count(self.gaps, bucket, count)

    def merge(self, other: "TierServiceLevels") -> None:
        for name in _SUMS:
            setattr(self, name, getattr(self, name) + getattr(other, name))
        for mine, theirs in ((self.ttft, other.ttft), (self.e2e, other.e2e), (self.speed, other.speed)):
            mine.merge(theirs)
        for sketches, more in ((self.stages, other.stages), (self.ttft_shares, other.ttft_shares)):
            for name, sketch in more.items():
                _sketch(sketches, name).merge(sketch)
        for bucket, count in other.gaps.items():
            _count(self.gaps, bucket, count)
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


# Its numbers, which add up.
_SUMS = (
    *("requests", "failed", "disputed", "below_target", "cost_usd", "baseline_usd"),
    *("tokens", "prompt_tokens", "cached_tokens"),
)


def _sketch(sketches: dict[str, Sketch], name: str) -> Sketch:
    sketch = sketches.get(name)
    if sketch is None:
        sketch = sketches[name] = Sketch()
    return sketch


def _count(counts: dict[Key, int], key: Key, more: int) -> None:
    counts[key] = counts.get(key, 0) + more


LevelsByTier = dict[int, TierServiceLevels]


def levels_together(levels: LevelsByTier) -> TierServiceLevels:
    """Return the sum over all tiers."""
    every = TierServiceLevels()
    for tier_levels in levels.values():
        every.merge(tier_levels)
    return every


class ServiceLevels:
    """Figures by tier of the last `slices` slices of time; a new slice replaces the oldest."""

    def __init__(
        self,
        slices: int = SLICES,
        slice_seconds: float = SLICE_SECONDS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.window_seconds = slices * slice_seconds
        self.settle: Callable[[], None] | None = None
        """Called before the figures are read: counts what still waits to be counted together."""
        self._slices: deque[tuple[int, LevelsByTier]] = deque(maxlen=slices)
        self._slice_seconds, self._clock = slice_seconds, clock

    def period(self) -> int:
        """Return the number of the slice that is under way."""
        return int(self._clock() / self._slice_seconds)

    def of(self, period: int, tier: int) -> TierServiceLevels:
        """Return the figures of a tier in a slice, to be added to; no earlier slice than the last one asked for."""
        if not self._slices or self._slices[-1][0] != period:
            self._slices.append((period, {}))
        figures = self._slices[-1][1]
        levels = figures.get(tier)
        if levels is None:
            levels = figures[tier] = TierServiceLevels()
        return levels

    def figures(self) -> LevelsByTier:
        """Return the figures by tier of the window that ends now."""
        if self.settle is not None:
            self.settle()
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
    all_levels = [own]
    for worker, reply in (await peers.ask("levels")).items():
        try:
            all_levels.append(msgspec.msgpack.decode(reply, type=LevelsByTier))
        except JSON_ERRORS as error:
            log.warning("worker %d's service levels are left out: %s", worker, error)
    return merged(all_levels)
