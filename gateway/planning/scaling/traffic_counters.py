"""Traffic between two scrapes, by tier, from the gateways' counters; a counter that fell was reset."""

import msgspec
from prometheus_client.parser import text_string_to_metric_families

_COUNTERS = {
    "aio_requests_total": "requests",
    "aio_prompt_tokens_total": "prompt_tokens",
    "aio_completion_tokens_total": "output_tokens",
}
Series = tuple[str, str, tuple[tuple[str, str], ...]]


class Passed(msgspec.Struct, frozen=True, kw_only=True):
    """Requests that ended between two scrapes, and their tokens."""

    requests: int = 0
    prompt_tokens: int = 0
    output_tokens: int = 0


class TrafficCounters:
    """The counters of several gateways, by scraped URL."""

    def __init__(self) -> None:
        self._last: dict[Series, float] = {}
        self._known: set[str] = set()

    def take(self, texts: dict[str, str | None]) -> dict[str, Passed] | None:
        """Return the traffic since the last call, by tier number. `texts`: an exposition by URL, None without an
        answer.

        Returns None if it is unknown: a gateway did not answer, or a new one has no previous counts.
        """
        complete = True
        passed: dict[str, dict[str, float]] = {}
        for url, text in texts.items():
            if text is None:
                # Its next answer covers several intervals at once, which is not a rate.
                self._known.discard(url)
                complete = False
                continue
            known = url in self._known
            complete &= known
            self._known.add(url)
            for series, value in _series(url, text):
                before = self._last.get(series, 0.0)
                self._last[series] = value
                labels = dict(series[2])
                counts = passed.setdefault(labels.get("tier", ""), {})
                name = _COUNTERS[series[1]]
                counts[name] = counts.get(name, 0.0) + (value - before if value >= before else value)
        if not complete:
            return None
        return {tier: Passed(**{name: int(value) for name, value in counts.items()}) for tier, counts in passed.items()}


def _series(url: str, text: str) -> list[tuple[Series, float]]:
    return [
        ((url, sample.name, tuple(sorted(sample.labels.items()))), sample.value)
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name in _COUNTERS
    ]
