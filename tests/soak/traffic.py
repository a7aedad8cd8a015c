"""Random requests for soaks: shared prefixes, continued conversations, priorities, deadlines, several choices."""

from pathlib import Path
from random import Random

from inference_core.protocol import AddRequest, SamplingParams

PAGE_BYTES = 4096


class Traffic:
    """Endless requests to `models`, a function of `seed` only. Token ids are below `vocab_size`.

    Half of the prompts start with one of a few system prompts of up to `longest_prefix` tokens, so that caches are hit;
    a request has up to `longest_tail` tokens of its own and asks for up to `longest_answer`.
    """

    def __init__(
        self,
        models: list[str],
        *,
        seed: int,
        vocab_size: int,
        longest_prefix: int,
        longest_tail: int,
        longest_answer: int,
        greedy: bool = False,
    ) -> None:
        self._random = random = Random(seed)
        self._models = models
        self._vocab_size = vocab_size
        self._longest_tail = longest_tail
        self._longest_answer = longest_answer
        self._greedy = greedy
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
            sampling=SamplingParams(
                temperature=0.0 if self._greedy else random.choice([0.0, 1.0]),
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


def resident_bytes() -> int:
    """Resident memory of this process."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * PAGE_BYTES
