"""A load that gives every technique something to do: shared prefixes, long prompts, answers of different lengths; and
work with something to copy: a passage, and the request for the same passage again, word for word."""

import json
import random
from functools import cache

from gateway.planning.load_test.workload import Job, Prompts
from inference_core.protocol import Grammar
from inference_core.quantization.calibration import prose

PREFIX_WORDS = 256
LONG_WORDS = 1024
ANSWER_LIMIT = 256
_ANSWER_LEAST = 8
_ANSWER_MEAN = 48
_PASSAGE_WORDS = 120

# A list of orders without end, so that every answer has its full length: strings, numbers, dates, names to choose from.
ORDER = {
    "type": "object",
    "properties": {
        "customer": {"type": "string", "maxLength": 40},
        "status": {"enum": ["open", "paid", "shipped", "returned"]},
        "total": {"type": "number", "minimum": 0},
        "items": {"type": "array", "items": {"type": "string", "maxLength": 30}, "minItems": 1, "maxItems": 5},
        "placed_on": {"type": "string", "format": "date"},
    },
    "required": ["customer", "status", "total", "items", "placed_on"],
    "additionalProperties": False,
}
ORDERS = Grammar(kind="json_schema", text=json.dumps({"type": "array", "items": ORDER, "minItems": 10_000}))


def mixed_jobs(seed: int, count: int) -> list[Job]:
    """`count` jobs: half share a prefix of `PREFIX_WORDS`, one in sixteen has `LONG_WORDS`, the rest 32 to 256 words.

    Answers are exponential in length around 48 tokens; every job declares that it may be `ANSWER_LIMIT` long.

    Which job is of which kind depends on its place alone, so that every load of a multiple of 16 has the same mixture.
    """
    draw = random.Random(seed)
    shared, own = Prompts(seed, PREFIX_WORDS), Prompts(seed + 1, 0)
    jobs = []
    for index in range(count):
        length = min(ANSWER_LIMIT, _ANSWER_LEAST + round(draw.expovariate(1 / (_ANSWER_MEAN - _ANSWER_LEAST))))
        if index % 2 == 0:
            prompt = shared.draw(draw.randint(16, 64))
        elif index % 16 == 9:
            prompt = own.draw(LONG_WORDS)
        else:
            prompt = own.draw(draw.randint(32, 256))
        jobs.append(Job(prompt, length, limit=ANSWER_LIMIT))
    return jobs


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
