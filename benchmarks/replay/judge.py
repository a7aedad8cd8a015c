"""The recorded judge: answers the gateway's own comparison prompts from the marks, and errs as often as it declares."""

from typing import NamedTuple

from benchmarks.replay.comparisons import as_written, comparison_in
from benchmarks.replay.ladder import MARGIN, Ladder, uniform
from quality.judges.pairwise import Word


class _Place(NamedTuple):
    prompt_id: str
    tier: int
    mark: float


class RecordedJudge:
    """Says which of two answers to a prompt has the better mark.

    `noise`: the share of pairs about which it is wrong, alike in both orders, so that asking twice does not help.
    While `shuffled`, it speaks of the same tiers' answers to another prompt: its verdicts have the right rates and say
    nothing about the prompts that they are given for.
    """

    def __init__(self, ladder: Ladder, noise: float) -> None:
        self.noise = noise
        self.shuffled = False
        self._places: dict[tuple[str, str], _Place] = {}
        self._marks: dict[str, tuple[float, ...]] = {}
        self._other: dict[str, str] = {}
        self.learn(ladder)

    def learn(self, ladder: Ladder) -> None:
        """Know the answers of `ladder`, in addition to those known before, some of which are still to be judged."""
        for prompt in ladder.prompts:
            self._marks[prompt.prompt_id] = tuple(answer.mark for answer in prompt.answers)
            for tier, answer in enumerate(prompt.answers, start=1):
                self._places[prompt.text, answer.text] = _Place(prompt.prompt_id, tier, answer.mark)
        ids = sorted(self._marks)
        self._other = dict(zip(ids, sorted(ids, key=lambda prompt_id: uniform("shuffled", prompt_id)), strict=True))

    def reply(self, message: str) -> str | None:
        """The label for a comparison; None if `message` is none. Raises `KeyError` for texts that are not recorded."""
        asked = comparison_in(message)
        if asked is None:
            return None
        if asked.control is not None:
            return asked.label(asked.control)
        first, second = (self._places[asked.question, as_written(text)] for text in (asked.first, asked.second))
        return asked.label(self._preferred(first, second))

    def _preferred(self, first: _Place, second: _Place) -> Word:
        lead = self._mark(first) - self._mark(second)
        if uniform("judge", first.prompt_id, *sorted((first.tier, second.tier))) < self.noise:
            # Of a pair that is alike, the stronger tier's answer is wrongly called the better one.
            lead = -lead if abs(lead) > MARGIN else (first.tier - second.tier) * (MARGIN + 1)
        if abs(lead) <= MARGIN:
            return "tie"
        return "first" if lead > 0 else "second"

    def _mark(self, answer: _Place) -> float:
        return self._marks[self._other[answer.prompt_id]][answer.tier - 1] if self.shuffled else answer.mark
