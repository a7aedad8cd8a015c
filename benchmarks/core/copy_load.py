"""Work with something to copy: a passage, and the request for the same passage again, word for word."""

from functools import cache

from gateway.planning.load_test.workload import Job
from inference_core.quantization.calibration import prose

_PASSAGE_WORDS = 120


def copy_prompt(number: int) -> str:
    """The prompt of this number: its passage, and how the copy begins."""
    words = _words()
    first = number * 37 % (len(words) - _PASSAGE_WORDS)
    passage = words[first : first + _PASSAGE_WORDS]
    return f"{' '.join(passage)}\n\nThe same text again, word for word:\n\n{' '.join(passage[:8])}"


def copy_jobs(seed: int, count: int, output_tokens: int = 96) -> list[Job]:
    """`count` jobs that copy, each a passage of its own; the same for the same seed."""
    return [Job(copy_prompt(1000 * seed + number), output_tokens) for number in range(count)]


@cache
def _words() -> list[str]:
    return prose().split()
