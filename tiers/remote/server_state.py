"""The queue of a server elsewhere: as its own metrics tell it, a Prometheus page of which the rest is not parsed, or as
the streams that it answers reveal it."""

import math
import re
from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

MOST_COUNTED = 2**53
"""Up to it a sample is a whole number; no server has answered or holds so many requests."""


def sum_of_samples(page: bytes, names: Sequence[str]) -> int | None:
    """Return the sum of all samples of these names, with any labels; None if a name has none or no counts."""
    total = 0.0
    for name in names:
        values = [_number(value) for value in _pattern(name).findall(page)]
        if not values or not all(0 <= value <= MOST_COUNTED for value in values):
            return None
        total += sum(values)
    return round(total) if total <= MOST_COUNTED else None


def _number(text: bytes) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan


@lru_cache
def _pattern(name: str) -> re.Pattern[bytes]:
    number = rb"([0-9.eE+-]{1,64}(?![0-9.eE+-])|NaN|[+-]?Inf)"
    return re.compile(rb"^" + re.escape(name.encode()) + rb"(?:\{[^\n]*\})?[ \t]+" + number, re.MULTILINE)


# A report counts this long: longer than the longest pause between two looks (`queue_poll_seconds`).
REPORT_SECONDS = 120.0
# A first token is late after this many times its usual time; less is noise, not a queue.
LATE = 2.0
# The usual time falls at once and rises slowly, so that a queue of minutes does not become usual. Seconds to 1 - 1/e.
RISE_SECONDS = 1800.0
# Weight of all earlier requests against the newest one in the mean service time: about the last 20 count.
KEPT = 0.95


class QueueReport(NamedTuple):
    """A server's own word on the requests of all its clients."""

    running: int
    waiting: int
    finished: float | None = None
    """Its answers so far; None if they are not counted."""


class Stream:
    """A streamed request of ours, from its sending to its end. `queue_seconds`: estimate of its time in the server's
    queue; 0 before its first token."""

    __slots__ = ("behind", "queue_seconds", "sent", "size")

    def __init__(self, sent: float, size: int, behind: int | None) -> None:
        self.sent, self.size = sent, size
        # So many requests waited when it was sent; None: not reported.
        self.behind = behind
        self.queue_seconds = 0.0


class ServerQueue:
    """How many requests wait at a server, and how long the next one would. No I/O; times: monotonic seconds.

    What the server tells is believed. Of one that tells nothing only a queue that shows is counted: once a stream of
    ours is without a first token for `LATE` times as long as usual for its length, it and those sent after it wait.
    Seconds per request are the server's own count of finished answers over time, while requests wait; without such a
    count, what first tokens took beyond the usual, per request in front, or the pauses between late first tokens.
    """

    def __init__(self) -> None:
        self._report: QueueReport | None = None
        self.is_told = False
        """Whether the server's last answer contained its queue."""
        self._reported = -math.inf
        # The last report from which finished answers are counted on, and its time.
        self._counted: tuple[QueueReport, float] | None = None
        self.silent: dict[Stream, None] = {}
        """Streams without a first token, oldest first."""
        self._last_first_token = -math.inf
        self._usual = _UsualTimes()
        self._service = _MeanTime()

    def tell(self, report: QueueReport | None, now: float) -> None:
        """Take the server's report; None: it did not report."""
        self._report, self._reported, self.is_told = report, now, report is not None
        if report is None or not report.waiting or report.finished is None:
            self._counted = None
            return
        if self._counted is not None:
            before, then = self._counted
            finished = report.finished - (before.finished or 0.0)
            if finished == 0:
                return
            if finished > 0:
                self._service.add(now - then, finished)
        self._counted = report, now

    def send(self, now: float, prompt_tokens: int) -> Stream:
        """A streamed request with a prompt of about `prompt_tokens` is sent."""
        report = self._current(now)
        stream = Stream(now, _size_class(prompt_tokens), None if report is None else report.waiting)
        self.silent[stream] = None
        return stream

    def first_token(self, stream: Stream, now: float) -> None:
        """Its first token came; further calls change nothing."""
        if stream not in self.silent:
            return
        del self.silent[stream]
        took, usual = now - stream.sent, self._usual.of(stream.size)
        if usual is not None and took > LATE * usual and stream.behind != 0:
            stream.queue_seconds = took - usual
            if stream.behind is None:
                self._service.add(now - max(self._last_first_token, stream.sent), 1)
            elif self._report is None or self._report.finished is None:
                self._service.add(took - usual, stream.behind)
        self._last_first_token = now
        self._usual.observe(stream.size, took, now)

    def end(self, stream: Stream) -> None:
        """It ended in any way. Idempotent."""
        self.silent.pop(stream, None)

    def waiting(self, now: float) -> int:
        """Return the number of requests that wait: of all clients if the server tells, else of ours."""
        if self._report is not None and now - self._reported <= REPORT_SECONDS:
            return self._report.waiting
        return len(self.silent) if self.silent and self._late_by(now) > 0 else 0

    def predicted_wait(self, now: float) -> float:
        """Return the seconds that the next request would wait; 0 if nothing waits."""
        waiting = self.waiting(now)
        return max(waiting * (self._service.value or 0.0), self._late_by(now)) if waiting else 0.0

    def _current(self, now: float) -> QueueReport | None:
        return self._report if now - self._reported <= REPORT_SECONDS else None

    def _late_by(self, now: float) -> float:
        """Return how many seconds the oldest stream without a first token waited beyond the usual; 0 if not late."""
        for stream in self.silent:
            # Of a length that was never answered before nothing is usual: the next one may say more.
            if (usual := self._usual.of(stream.size)) is not None:
                waited = now - stream.sent
                return waited - usual if waited > LATE * usual else 0.0
        return 0.0


class _UsualTimes:
    """The time to a first token without a queue, by size class: the least of late."""

    def __init__(self) -> None:
        self._least: dict[int, tuple[float, float]] = {}

    def of(self, size: int) -> float | None:
        """Return the seconds for prompts of this class; None if none was answered yet."""
        observed = self._least.get(size)
        return None if observed is None else observed[0]

    def observe(self, size: int, seconds: float, now: float) -> None:
        """A first token took `seconds`."""
        observed = self._least.get(size)
        if observed is not None and seconds > observed[0]:
            least, then = observed
            seconds = least + (seconds - least) * (1 - math.exp(-max(now - then, 0.0) / RISE_SECONDS))
        self._least[size] = seconds, now


class _MeanTime:
    """Mean seconds per request; each earlier one counts `KEPT` times as much as the next."""

    def __init__(self) -> None:
        self._seconds = self._requests = 0.0

    def add(self, seconds: float, requests: float) -> None:
        """`requests` took `seconds` together."""
        kept = KEPT**requests
        self._seconds = self._seconds * kept + seconds
        self._requests = self._requests * kept + requests

    @property
    def value(self) -> float | None:
        """Seconds per request; None before the first."""
        return self._seconds / self._requests if self._requests else None


def _size_class(tokens: int) -> int:
    """Prompts of one class differ at most fourfold in length; all below 16 tokens are one."""
    return max(tokens, 16).bit_length() // 2
