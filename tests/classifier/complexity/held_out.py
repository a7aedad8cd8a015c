"""Prompts and conversations on which nothing was fitted or tuned, with the tiers that two raters accept (`held_out/`).

A row has the `class` that the first rater gave, and `lo` to `hi`, the tiers that this rater accepts. `ratings.jsonl`
has those of the second rater, who saw neither. A tier is accepted if one of them accepts it; where the two ranges
neither overlap nor adjoin, the first rater's counts.
"""

import json
import random
from pathlib import Path
from typing import Literal

import msgspec

from inference_core.io.json_lines import json_lines
from tests.classifier.complexity.pastes import paste

FOLDER = Path(__file__).parent / "held_out"
SETS = ("conversations", "housekeeping", "pasted", "translations", "noise", "short_hard", "languages")
Message = dict[str, str]


class Row(msgspec.Struct, frozen=True, kw_only=True, rename={"class_": "class"}):
    """One row of any set. `turns`: roles and texts; `texts`: one request in several languages; `wrapper`: instructions
    on form with `{}` for the prompt; `ask` stands before or after a `pasted` text, which may be given by its
    generator."""

    id: str
    class_: int
    lo: int
    hi: int
    kind: str = ""
    lang: str = "en"
    prompt: str = ""
    turns: list[tuple[str, str]] = []
    texts: dict[str, str] = {}
    ornate: str = ""
    wrapper: str = ""
    ask: str = ""
    place: Literal["before", "after"] = "before"
    paste: str = ""
    seed: int = 0
    lines: int = 0

    @property
    def messages(self) -> list[Message]:
        """The request's messages; of several languages, the first."""
        if self.turns:
            return [{"role": role, "content": content} for role, content in self.turns]
        return user(self.prompt or self.question or next(iter(self.texts.values())))

    @property
    def question(self) -> str:
        """The pasted text with what is asked about it, "" where nothing is asked."""
        if not self.ask:
            return ""
        pasted = self.paste or paste(self.kind, self.seed, self.lines)
        return "\n\n".join((self.ask, pasted) if self.place == "before" else (pasted, self.ask))

    @property
    def wrapped(self) -> str:
        return self.wrapper.replace("{}", self.prompt)


class Rating(msgspec.Struct, frozen=True, rename={"class_": "class"}):
    """What the second rater says of a row of `set`."""

    set: str
    id: str
    class_: int
    lo: int
    hi: int


def user(text: str) -> list[Message]:
    return [{"role": "user", "content": text}]


def read(name: str) -> list[Row]:
    """Return the rows of a set of `SETS` as the first rater wrote them."""
    return [row for _, row in json_lines(FOLDER / f"{name}.jsonl", Row, ValueError)]


def second_ratings() -> dict[tuple[str, str], Rating]:
    """Return the second rater's by set and id."""
    rows = (row for _, row in json_lines(FOLDER / "ratings.jsonl", Rating, ValueError))
    return {(row.set, row.id): row for row in rows}


def rated(name: str) -> list[Row]:
    """Return the rows of a set with the range of both raters."""
    second = second_ratings()
    return [with_both_ranges(row, second.get((name, row.id))) for row in read(name)]


def with_both_ranges(row: Row, other: Rating | None) -> Row:
    """Return `row` with the union of both raters' ranges, if they overlap or adjoin."""
    if other is None or other.lo > row.hi + 1 or row.lo > other.hi + 1:
        return row
    return msgspec.structs.replace(row, lo=min(row.lo, other.lo), hi=max(row.hi, other.hi))


# Keys that are next to a letter's on a keyboard.
_NEXT = json.loads(
    '{"a":"qs","b":"vn","c":"xv","d":"sf","e":"wr","f":"dg","g":"fh","h":"gj","i":"uo","j":"hk","k":"jl","l":"k","m":"n",'
    '"n":"bm","o":"ip","p":"o","q":"wa","r":"et","s":"ad","t":"ry","u":"yi","v":"cb","w":"qe","x":"zc","y":"tu","z":"x"}'
)


def misspelt(text: str, share: float, seed: int) -> str:
    """Return `text` with one wrong, missing, doubled or exchanged letter in `share` of its words, at least in one.

    Only words of three letters or more change; spaces and line breaks stay.
    """
    draw, parts = random.Random(seed), text.split(" ")
    able = [n for n, part in enumerate(parts) if sum(letter in _NEXT for letter in part.lower()) >= 3]
    count = min(len(able), max(1, round(share * len(parts))))
    for n in draw.sample(able, count):
        parts[n] = _with_a_slip(parts[n], draw)
    return " ".join(parts)


def _with_a_slip(word: str, draw: random.Random) -> str:
    places = [n for n, letter in enumerate(word) if letter.lower() in _NEXT]
    at = draw.choice(places)
    slip = draw.randrange(4)
    if slip == 0:
        return word[:at] + draw.choice(_NEXT[word[at].lower()]) + word[at + 1 :]
    if slip == 1:
        return word[:at] + word[at + 1 :]
    if slip == 2 or at + 1 == len(word):
        return word[: at + 1] + word[at:]
    return word[:at] + word[at + 1] + word[at] + word[at + 2 :]
