"""Random requests for soaks, and a core under them that checks itself and every answer."""

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from random import Random

from inference_core.engine.core import Core
from inference_core.protocol import AddRequest, SamplingParams, SequenceOutput

PAGE_BYTES = 4096


class Traffic:
    """Endless requests to `models`, a function of `seed` only. Token ids are below `vocab_size`.

    Half of the prompts start with one of a few system prompts of up to `longest_prefix` tokens, so that caches are hit;
    a request has up to `longest_tail` tokens of its own and asks for up to `longest_answer`, or all ask for `answer`.
    """

    def __init__(
        self,
        models: list[str],
        *,
        seed: int,
        vocab_size: int,
        longest_prefix: int,
        longest_tail: int,
        longest_answer: int = 0,
        answer: SamplingParams | None = None,
    ) -> None:
        self._random = random = Random(seed)
        self._models = models
        self._vocab_size = vocab_size
        self._longest_tail = longest_tail
        self._longest_answer = longest_answer
        self._answer = answer
        lengths = [random.randint(longest_prefix // 2, longest_prefix) for _ in range(5)]
        self._prefixes = [self._tokens(length) for length in lengths]
        self._sent = 0

    def next(self, now: float) -> AddRequest:
        """Return the next request, arriving at `now`."""
        random = self._random
        self._sent += 1
        prefix = random.choice(self._prefixes) if random.random() < 0.5 else []
        return AddRequest(
            request_id=f"r{self._sent}",
            model=random.choice(self._models),
            prompt_token_ids=prefix[: random.randint(0, len(prefix))]
            + self._tokens(random.randint(1, self._longest_tail)),
            sampling=self._answer
            or SamplingParams(
                temperature=random.choice([0.0, 1.0]),
                seed=random.randrange(1 << 30),
                max_tokens=random.randint(1, self._longest_answer),
            ),
            n=random.choice([1, 1, 1, 1, 3]),
            priority=random.randrange(3),
            arrival=now,
            deadline=random.choice([None, now + random.random()]),
            salt=random.choice(["", "", "tenant"]),
        )

    def is_impatient(self) -> bool:
        """Return whether this client leaves before its answer ends: one in fifteen does."""
        return self._random.random() < 1 / 15

    def _tokens(self, count: int) -> list[int]:
        return [self._random.randrange(self._vocab_size) for _ in range(count)]


class Soak:
    """A core under `traffic`, with up to `in_flight` requests at a time.

    Each choice that ends is given to `ended`, with its tokens and its reason.
    """

    def __init__(
        self,
        core: Core,
        traffic: Traffic,
        clock: Callable[[], float],
        ended: Callable[[AddRequest, SequenceOutput, list[int]], None],
        in_flight: int,
    ) -> None:
        self.core, self.ends, self.answered = core, Counter[str](), 0
        self._traffic, self._clock, self._ended, self._in_flight = traffic, clock, ended, in_flight
        self._live: dict[str, AddRequest] = {}
        self._said: dict[tuple[str, int], list[int]] = {}
        self._leaving: dict[str, int] = {}
        self._steps = 0

    def run(self, requests: int) -> None:
        """Send `requests` more and wait for all of them."""
        sent = 0
        while sent < requests or self._live:
            while sent < requests and len(self._live) < self._in_flight:
                self._send()
                sent += 1
            self._note(self.core.step())
            self._steps += 1
            for request_id in [name for name, step in self._leaving.items() if step <= self._steps]:
                self._note(self.core.abort(request_id))
            if self._steps % 20 == 0:
                self.core.check_integrity()
        self.core.check_integrity()

    def _send(self) -> None:
        request = self._traffic.next(self._clock())
        self.core.add(request)
        self._live[request.request_id] = request
        self._said |= {(request.request_id, index): [] for index in range(request.n)}
        if self._traffic.is_impatient():
            self._leaving[request.request_id] = self._steps + request.sampling.max_tokens // 2

    def _note(self, outputs: list[SequenceOutput]) -> None:
        for output in outputs:
            name, request = output.request_id, self._live[output.request_id]
            self._said[name, output.index] += output.token_ids
            if output.finish_reason is None:
                continue
            self.ends[output.finish_reason] += 1
            self._ended(request, output, self._said.pop((name, output.index)))
            if not any((name, index) in self._said for index in range(request.n)):
                del self._live[name]
                self._leaving.pop(name, None)
                self.answered += 1


def resident_bytes() -> int:
    """Resident memory of this process."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * PAGE_BYTES
