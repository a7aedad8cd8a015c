"""What a scripted model reads of a prompt of the pairwise judge: question, labels, and answers without their marks."""

import re
from typing import NamedTuple

from quality.judges.pairwise import CONTROL, Word

_COMPARISON = re.compile(
    r"\[question (?P<number>\w+)\]\n(?P<question>.*)\n\[end of question (?P=number)\]\n\n"
    r"\[answer (?P<one>\w+) (?P=number)\]\n(?P<first>.*)\n\[end of answer (?P=one) (?P=number)\]\n\n"
    r"\[answer (?P<two>\w+) (?P=number)\]\n(?P<second>.*)\n\[end of answer (?P=two) (?P=number)\]\n\n"
    r"Which answer is better\? Reply (?P=one) or (?P=two), or (?P<tie>\w+) if they are equally good\.",
    re.DOTALL,
)
_CONTROL = re.compile(re.escape(CONTROL).replace(r"\{code\}", r"(\S+)"))
_FILLER = "\n(This line says nothing.)"


class Comparison(NamedTuple):
    """`first` and `second` with the lines that were added; `number` is the secret one of the frames."""

    number: str
    question: str
    first: str
    second: str
    labels: tuple[str, str, str]

    @property
    def control(self) -> Word | None:
        """The known verdict of a control; None for a comparison of answers."""
        match = _CONTROL.fullmatch(self.question)
        if match is None:
            return None
        return "first" if self.first.startswith(match[1]) else "second"

    def label(self, word: Word) -> str:
        """Return how the prompt wants `word` said."""
        return dict(zip(("first", "second", "tie"), self.labels, strict=True))[word]

    def word(self, label: str) -> Word:
        """Return what `label` means here."""
        words: tuple[Word, ...] = ("first", "second", "tie")
        return words[self.labels.index(label)]


def comparison_in(message: str) -> Comparison | None:
    """Return the comparison that `message` asks for; None if it asks for none."""
    match = _COMPARISON.match(message)
    if match is None:
        return None
    mark = re.compile(rf"^{match['number']}\| ", re.MULTILINE)
    question, first, second = (mark.sub("", match[name]) for name in ("question", "first", "second"))
    return Comparison(match["number"], question, first, second, (match["one"], match["two"], match["tie"]))


def as_written(text: str) -> str:
    """Return an answer without the lines that were added."""
    return text.replace(_FILLER, "")
