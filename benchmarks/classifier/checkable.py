"""How many recorded prompts and answers have a final answer that can be checked, by collection.

A kind is known if the prompt alone says it. Collections of puzzles ask for tags in a system prompt that their rows
leave out; their prompts are counted as they are, and after a system prompt that asks for tags.
"""

import gzip
import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from tiers.final_answer.expected import expected_kind
from tiers.final_answer.extract import final_answer

TAGS = "Think step by step. Give the final answer between <answer> and </answer>, and only that.\n"


class PromptRow(msgspec.Struct):
    """Prompts of one collection and metric; `kinds` of those where it is known, `tagged` those known after `TAGS`."""

    prompts: int = 0
    tagged: int = 0
    kinds: Counter[str] = msgspec.field(default_factory=Counter)

    @property
    def share(self) -> float:
        """The share of prompts whose kind is known as they are."""
        return self.kinds.total() / self.prompts


class TextRow(msgspec.Struct):
    """Answers of one model: of prompts of a known kind, with a final answer, and both."""

    texts: int = 0
    known: int = 0
    found: int = 0
    found_where_known: int = 0


def checkable_prompts(folder: Path) -> dict[str, PromptRow]:
    """Count the prompts of `customers`, `routing_outcomes` and `gsm8k_sample`. Raises `FileNotFoundError`."""
    rows: dict[str, PromptRow] = {}
    for name in ("customers.jsonl.gz", "routing_outcomes.jsonl.gz", "gsm8k_sample.jsonl"):
        for line in _lines(folder / name):
            row = rows.setdefault(f"{line.get('source', 'gsm8k_sample')}, {line.get('metric', 'math')}", PromptRow())
            kind = expected_kind(line["prompt"])
            row.prompts += 1
            row.tagged += expected_kind(TAGS + line["prompt"]) is not None
            if kind is not None:
                row.kinds[kind] += 1
    return rows


def checkable_texts(folder: Path) -> dict[str, TextRow]:
    """Count the answers of `replay_arena`, whose texts are recorded, by model. Raises `FileNotFoundError`."""
    rows: dict[str, TextRow] = {}
    for line in _lines(folder / "replay_arena.jsonl.gz"):
        prompt = line["turns"][-1]["content"]
        known = expected_kind(prompt) is not None
        for answer in line["answers"].values():
            row = rows.setdefault(answer["model"], TextRow())
            found = final_answer(prompt, answer["text"]) is not None
            row.texts += 1
            row.known += known
            row.found += found
            row.found_where_known += known and found
    return rows


def _lines(path: Path) -> Iterator[dict[str, Any]]:
    with gzip.open(path, "rt") if path.suffix == ".gz" else path.open() as lines:
        for line in lines:
            yield json.loads(line)
