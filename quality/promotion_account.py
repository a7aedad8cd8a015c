"""What promotions by recent outcomes cost beside serving, and that they stop when their share of it is spent."""

from collections import deque

WINDOW_SECONDS = 86_400.0
_BUCKETS = 96


class PromotionAccount:
    """US dollars of one process over the trailing window, in buckets of a quarter of an hour by default.

    Replicas each keep their own: if none passes its share of its own serving, all together do not pass theirs. Requests
    that are under way when the share is spent are still served as they were routed.
    """

    def __init__(self, window_seconds: float = WINDOW_SECONDS) -> None:
        self._bucket_seconds = window_seconds / _BUCKETS
        self._buckets: deque[tuple[int, float, float]] = deque()
        self.serving_usd = self.extra_usd = 0.0

    def book(self, serving_usd: float, extra_usd: float, now: float) -> None:
        """Add a served request: what it cost, and by how much its promotion was predicted to make it dearer."""
        self._forget(now)
        number = int(now // self._bucket_seconds)
        if self._buckets and self._buckets[-1][0] >= number:
            number, serving, extra = self._buckets.pop()
            serving_usd_here, extra_usd_here = serving + serving_usd, extra + extra_usd
        else:
            serving_usd_here, extra_usd_here = serving_usd, extra_usd
        self._buckets.append((number, serving_usd_here, extra_usd_here))
        self.serving_usd += serving_usd
        self.extra_usd += extra_usd

    def admits(self, share: float, now: float) -> bool:
        """Whether promotions may go on: what they added is below `share` of what serving cost."""
        self._forget(now)
        return self.extra_usd < share * self.serving_usd

    def _forget(self, now: float) -> None:
        oldest = int(now // self._bucket_seconds) - _BUCKETS
        if not self._buckets or self._buckets[0][0] > oldest:
            return
        while self._buckets and self._buckets[0][0] <= oldest:
            self._buckets.popleft()
        # Summed afresh, so that rounding does not add up over the years.
        self.serving_usd = sum(serving for _, serving, _ in self._buckets)
        self.extra_usd = sum(extra for _, _, extra in self._buckets)
