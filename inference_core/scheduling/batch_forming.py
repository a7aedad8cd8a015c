"""When waiting sequences may join the running ones: at once, or in batches as without continuous batching.

Continuous batching (Yu et al., "Orca", 2022) is the default; the other two are its baselines (SPEC BS-01 to BS-03)
for the same model, memory and load:

- *static*: the sequences that wait when a batch has ended are the next batch, up to `max_num_seqs`;
- *dynamic*: the same, but a batch is held back until it has one of the preferred sizes, or its oldest member has waited
  for `max_queue_delay_ms`, whichever comes first.

Under continuous batching the delay and the sizes hold back prompts only while others decode, so that several prompts
share the steps that slow those others down.
"""

from collections.abc import Iterable

from inference_core.protocol import Knobs
from inference_core.scheduling.waiting_queue import WaitingQueue


class Batch:
    """Which sequences may join now: all, or under the baselines the members of the batch."""

    def __init__(self) -> None:
        self._members: set[str] | None = None

    @property
    def is_open(self) -> bool:
        """Whether all sequences may join: batching is continuous."""
        return self._members is None

    def __contains__(self, sequence_id: str) -> bool:
        return self._members is None or sequence_id in self._members

    def form(self, knobs: Knobs, running: Iterable[str], waiting: WaitingQueue, now: float) -> None:
        """Choose the next members once all have ended, if enough wait or the oldest has waited long enough."""
        if knobs.batching == "continuous":
            self._members = None
            return
        if self._members is None:
            self._members = set(running)
        if not self._members and waiting:
            size = batch_size(knobs, waiting=len(waiting), oldest_wait=waiting.oldest_wait(now))
            self._members = {sequence.id for *_, sequence in waiting.entries()[:size]}

    def discard(self, sequence_id: str) -> None:
        """A sequence has ended."""
        if self._members is not None:
            self._members.discard(sequence_id)

    def seconds_held(self, knobs: Knobs, waiting: WaitingQueue, now: float) -> float:
        """Seconds that waiting sequences are still held back so that their batch can grow; 0 if they are not."""
        if self._members or knobs.batching != "dynamic" or not waiting:
            return 0.0
        wait = waiting.oldest_wait(now)
        if batch_size(knobs, waiting=len(waiting), oldest_wait=wait):
            return 0.0
        return knobs.max_queue_delay_ms / 1e3 - wait


def batch_size(knobs: Knobs, *, waiting: int, oldest_wait: float) -> int:
    """Return how many of `waiting` form the next batch now, 0 to wait for more. `oldest_wait` is in seconds."""
    if knobs.batching == "static" or _waited_enough(knobs, oldest_wait):
        return min(waiting, knobs.max_num_seqs)
    return max((size for size in _sizes(knobs) if size <= waiting), default=0)


def joins_now(knobs: Knobs, *, decoding: int, waiting: int, oldest_wait: float) -> bool:
    """Whether continuous batching computes prompts now, while `decoding` sequences decode."""
    if not decoding or _waited_enough(knobs, oldest_wait):
        return True
    return waiting >= min(_sizes(knobs))


def _waited_enough(knobs: Knobs, oldest_wait: float) -> bool:
    """Compare to a microsecond: a clock advanced by exactly the rest may fall short of it by rounding."""
    return oldest_wait >= knobs.max_queue_delay_ms / 1e3 - 1e-6


def _sizes(knobs: Knobs) -> list[int]:
    """The preferred batch sizes and the full batch."""
    full = knobs.max_num_seqs
    return [*(min(size, full) for size in knobs.preferred_batch_sizes), full]
