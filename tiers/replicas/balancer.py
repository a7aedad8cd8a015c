"""Which replica gets a request, and which is ejected for a while. Pure bookkeeping: no I/O, and the clock is injected.

Prefix affinity is by rendezvous hashing: which replica has a prompt's prefix in its cache.
"""

import logging
import math
import random
from collections.abc import Callable, Collection, Sequence
from hashlib import blake2b

from inference_core.tokenization.prompt_size import BYTES_PER_TOKEN
from tiers.catalog.replica_spec import BalancingSpec, ReplicaSpec, replica_names
from tiers.replicas.replica import InFlightRequest, Replica
from tiers.tier import GenerationRequest, ModelRequest


def prefix_key(request: GenerationRequest, num_bytes: int) -> bytes:
    """Return a hash of tenant, adapter and the first `num_bytes` of the prompt.

    For a chat: everything up to its first user turn, which later turns repeat.
    """
    digest = blake2b(digest_size=16)
    digest.update(f"{request.salt}\0{request.adapter}\0".encode(errors="replace"))
    room = num_bytes
    for part in _beginning(request, num_bytes):
        digest.update(part[:room])
        room -= len(part)
        if room <= 0:
            break
    return digest.digest()


def rendezvous_score(key: bytes, url: str, weight: float) -> float:
    """Return a server's score for a key; the highest wins. Each wins a share of keys by its weight.

    Thaler and Ravishankar 1998; weights as in Schindelhauer and Schomaker 2005. When a server is removed only its keys
    move, and when one is added keys move only to it.
    """
    drawn = int.from_bytes(blake2b(key + url.encode(), digest_size=8).digest(), "big")
    return -weight / math.log((drawn + 0.5) / 2**64)


def _beginning(request: ModelRequest, num_bytes: int) -> list[bytes]:
    if isinstance(request.prompt, list):
        return [" ".join(map(str, request.prompt[: num_bytes // BYTES_PER_TOKEN])).encode()]
    if request.prompt is not None:
        return [request.prompt[:num_bytes].encode(errors="replace")]
    parts: list[bytes] = []
    for message in request.messages or []:
        media = " ".join(block.digest for block in message.media)
        parts.append(f"{message.role}\0{media}{message.text[:num_bytes]}\0".encode(errors="replace"))
        if message.role == "user":
            break
    return parts


log = logging.getLogger(__name__)


class Balancer:
    """Spreads requests over replicas of one model, and ejects those that fail. `spec` may be replaced at any time.

    A prompt goes where its prefix is cached (rendezvous hashing) while that replica has at most `affinity_load` times
    its share of the requests in flight (consistent hashing with bounded loads, Mirrokni et al. 2016) and is not too
    slow; else to the better of two random ones (Mitzenmacher 2001), by time to first token × queue. At most half of the
    replicas are ejected at once for failures; a server's own request to pause and a refused key are always obeyed.
    Of several keys for one server, one that was paused is tried with one request first.
    """

    def __init__(
        self,
        name: str,
        replicas: Sequence[ReplicaSpec],
        spec: BalancingSpec,
        *,
        clock: Callable[[], float],
        rng: random.Random,
    ) -> None:
        mean_weight = sum(replica.weight for replica in replicas) / len(replicas)
        names = replica_names(replicas)
        self.replicas = [Replica(replica, mean_weight, name) for replica, name in zip(replicas, names, strict=True)]
        self.spec = spec
        self._name, self._clock, self._rng = name, clock, rng

    def begin(self, key: bytes | None, tried: Collection[Replica] = (), tokens: int = 0) -> InFlightRequest | None:
        """Choose a replica that is not among `tried` and count the request there; None if none is available.

        `key`: hash of the prompt's prefix; None for no affinity. `tokens`: of the prompt, for the limits. Only a first
        attempt can be the trial of an ejected replica whose time is over, because it can still be repeated elsewhere.
        """
        now = self._clock()
        waiting = () if tried else (r for r in self.replicas if r.breaker.awaits_trial(now))
        probed = next((r for r in waiting if r.is_within_limits(now, tokens)), None)
        serving = [r for r in self._serving(now) if r not in tried and r.is_within_limits(now, tokens)]
        replica = probed or self._choose(key, serving, now)
        if replica is None:
            return None
        in_flight = InFlightRequest(replica, now, None if replica.limits is None else replica.limits.add(now, tokens))
        if probed is not None:
            probed.breaker.trial = in_flight
        replica.requests_in_flight[in_flight] = replica.silent[in_flight] = None
        replica.requests += 1
        return in_flight

    def first_token(self, in_flight: InFlightRequest) -> None:
        replica, now = in_flight.replica, self._clock()
        replica.silent.pop(in_flight, None)
        replica.ttft.observe(now - in_flight.began, now, self.spec.ttft_decay_seconds)
        if replica.breaker.trial is in_flight:
            replica.breaker.begin_probation(self.spec.consecutive_failures)
            log.info("tier '%s': %s answers again", self._name, replica.url)

    def succeed(self, in_flight: InFlightRequest) -> None:
        """The answer was completed, or the server rejected the request itself."""
        replica = in_flight.replica
        if self._end(in_flight) and self._counts(in_flight):
            replica.breaker.succeed()
            replica.recent_requests.add(self._clock(), self.spec.error_window_seconds)

    def fail(self, in_flight: InFlightRequest) -> None:
        replica, now = in_flight.replica, self._clock()
        if not self._end(in_flight):
            return
        replica.failures += 1
        if not self._counts(in_flight):
            return
        replica.breaker.fail(now)
        replica.recent_requests.add(now, self.spec.error_window_seconds)
        replica.recent_failures.add(now, self.spec.error_window_seconds)
        reason = self._why_to_eject(replica, now)
        if reason is not None and (replica.breaker.is_open or self._may_eject()):
            seconds = replica.breaker.eject(now, self.spec.ejection_seconds, self.spec.max_ejection_seconds)
            replica.forget_errors()
            log.warning("tier '%s': %s is left alone for %.3g s: %s", self._name, replica.url, seconds, reason)

    def pause(self, in_flight: InFlightRequest, seconds: float) -> None:
        """The server asked for no requests for that long."""
        if self._end(in_flight):
            in_flight.replica.breaker.pause(self._clock(), seconds, then_try=in_flight.replica.is_key)

    def reject(self, in_flight: InFlightRequest, seconds: float) -> None:
        """The server refused the key: eject the replica at once, for `seconds` at least, until a trial succeeds."""
        replica, now, spec = in_flight.replica, self._clock(), self.spec
        if not self._end(in_flight):
            return
        replica.failures += 1
        if self._counts(in_flight):
            replica.breaker.fail(now)
            ejected = replica.breaker.eject(now, max(spec.ejection_seconds, seconds), spec.max_ejection_seconds)
            log.warning("tier '%s': the key of %s is refused; left alone for %.3g s", self._name, replica.url, ejected)

    def used(self, in_flight: InFlightRequest, tokens: int) -> None:
        """Count the tokens that a request has used in place of the estimate."""
        if in_flight.entry is not None and in_flight.replica.limits is not None:
            in_flight.replica.limits.settle(in_flight.entry, tokens, self._clock())

    def leave(self, in_flight: InFlightRequest) -> None:
        """The caller left, or another replica was faster: only the elapsed time is known."""
        replica, now = in_flight.replica, self._clock()
        waited = now - in_flight.began
        was_silent = in_flight in replica.silent
        if not self._end(in_flight):
            return
        if was_silent and replica.ttft.latest is not None and waited > replica.ttft.latest:
            replica.ttft.observe(waited, now, self.spec.ttft_decay_seconds)
        if replica.breaker.trial is in_flight:
            replica.breaker.trial = None

    @property
    def is_healthy(self) -> bool:
        """Return whether some replica takes requests and did not just fail, or waits for its trial."""
        now = self._clock()
        if any(replica.is_well(now) and replica.is_within_limits(now, 1) for replica in self._serving(now)):
            return True
        return any(replica.breaker.awaits_trial(now) for replica in self.replicas)

    def available_in(self, tokens: int = 0) -> float:
        """Return the seconds until some replica takes a request of so many prompt tokens."""
        now = self._clock()
        return min(replica.available_in(now, tokens) for replica in self.replicas)

    def serving(self) -> list[str]:
        """Return the addresses of the replicas that take requests."""
        return [replica.url for replica in self._serving(self._clock())]

    def _serving(self, now: float) -> list[Replica]:
        return [replica for replica in self.replicas if replica.breaker.takes_requests(now)]

    def _choose(self, key: bytes | None, open_ones: list[Replica], now: float) -> Replica | None:
        if len(open_ones) < 2:
            return open_ones[0] if open_ones else None
        rest = min((r.ttft.latest for r in open_ones if r.ttft.latest is not None), default=0.0)
        if key is None:
            return self._better_of_two(open_ones, now, rest)
        preferred = max(open_ones, key=lambda r: rendezvous_score(key, r.url, r.weight))
        other = self._better_of_two([r for r in open_ones if r is not preferred], now, rest)
        if preferred.outstanding + 1 > self._most(preferred, open_ones):
            return other
        bearable = self.spec.affinity_wait * self._wait(other, now, rest)
        return preferred if self._wait(preferred, now, rest) <= bearable else other

    def _most(self, replica: Replica, open_ones: list[Replica]) -> int:
        """Return the most requests on a replica that affinity allows, including the next one."""
        total = sum(r.outstanding for r in open_ones) + 1
        share = replica.weight / sum(r.weight for r in open_ones)
        return math.ceil(self.spec.affinity_load * total * share)

    def _better_of_two(self, replicas: list[Replica], now: float, rest: float) -> Replica:
        first = self._draw(replicas)
        if len(replicas) == 1:
            return first
        second = self._draw([replica for replica in replicas if replica is not first])
        return first if self._wait(first, now, rest) <= self._wait(second, now, rest) else second

    def _draw(self, replicas: list[Replica]) -> Replica:
        return self._rng.choices(replicas, [replica.weight for replica in replicas])[0]

    def _wait(self, replica: Replica, now: float, rest: float) -> float:
        return replica.expected_wait(now, self.spec.ttft_decay_seconds, rest)

    def _end(self, in_flight: InFlightRequest) -> bool:
        """Remove a in_flight from its replica; False if it had ended."""
        if in_flight.is_over:
            return False
        in_flight.is_over = True
        del in_flight.replica.requests_in_flight[in_flight]
        in_flight.replica.silent.pop(in_flight, None)
        return True

    def _counts(self, in_flight: InFlightRequest) -> bool:
        """Return whether the outcome counts: an ejected replica's only of its trial; others were sent before."""
        breaker = in_flight.replica.breaker
        return not breaker.is_open or breaker.trial is in_flight

    def _may_eject(self) -> bool:
        ejected = sum(replica.breaker.is_open for replica in self.replicas)
        return ejected + 1 <= len(self.replicas) // 2

    def _why_to_eject(self, replica: Replica, now: float) -> str | None:
        """Return a reason to eject: consecutive failures, or a higher failure rate than the others'."""
        spec, in_a_row = self.spec, replica.breaker.failures
        if replica.breaker.is_open:
            return "its probe failed"
        if in_a_row >= spec.consecutive_failures:
            return f"{in_a_row} failures in a row"
        failed, requests = replica.error_counts(now, spec.error_window_seconds)
        if requests < spec.error_requests:
            return None
        others = [r.error_counts(now, spec.error_window_seconds) for r in self.replicas if r is not replica]
        failed_there, requests_there = sum(f for f, _ in others), sum(n for _, n in others)
        if not requests_there:
            return None
        share, usual = failed / requests, failed_there / requests_there
        if share - usual < spec.error_excess:
            return None
        return f"{share:.0%} of its requests failed lately, {usual:.0%} of the others'"
