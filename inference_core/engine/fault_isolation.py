"""What to do after a step failed: whom it concerns, and in which parts the rest is tried again."""

from dataclasses import dataclass

from msgspec.structs import replace

from inference_core.errors import BadLogitsError
from inference_core.step_plan import ScheduledSequence, ScoreSpec

Part = list[ScheduledSequence]


@dataclass(slots=True, frozen=True)
class FailureSplit:
    """Of a part of a step that failed: who fails for good, and the parts to run in its place."""

    failed: Part
    retries: list[Part]


def bisect_failure(part: Part, error: Exception) -> FailureSplit:
    """Halve until the failed are alone; undrawable rows name themselves, and a lone chunk may fit in two."""
    if isinstance(error, BadLogitsError) and error.rows:
        sampled = [share for share in part if share.sample is not None]
        failed = [sampled[row] for row in error.rows]
        rest = [share for share in part if not any(share is g for g in failed)]
        return FailureSplit(failed, [rest] if rest else [])
    if len(part) > 1:
        middle = len(part) // 2
        return FailureSplit([], [part[:middle], part[middle:]])
    if isinstance(error, MemoryError) and len(part[0].token_ids) > 1:
        return FailureSplit([], [[half] for half in _halves(part[0])])
    return FailureSplit(part, [])


def _halves(share: ScheduledSequence) -> tuple[ScheduledSequence, ScheduledSequence]:
    """A prompt chunk as two, to be run one after the other."""
    middle = len(share.token_ids) // 2
    first = replace(share, token_ids=share.token_ids[:middle], sample=None)
    second = replace(share, token_ids=share.token_ids[middle:], start=share.start + middle)
    if share.score is not None:
        targets, top = share.score.token_ids, share.score.top
        first.score = ScoreSpec(targets[:middle], top)
        second.score = ScoreSpec(targets[middle:], top) if len(targets) > middle else None
    if share.state is not None:
        first.state = replace(share.state, first=min(share.state.first, middle))
        second.state = replace(share.state, first=max(share.state.first - middle, 0))
    return first, second
