"""What becomes of labels when the strongest tier errs: the gateway's own verification, on outcomes of four models.

Which prompts a model gets right is recorded; the answers are made to carry that, and errors of the strongest tier are
planted on top. Only what a gateway would see reaches the verification; the labels are then compared with the truth.
"""

from collections.abc import AsyncIterator, Iterator, Sequence
from typing import Literal

import msgspec

from benchmarks.replay.ladder import uniform
from classifier.training.data.dataset import RIGHT, TIER_MODELS, OutcomeRow
from quality.estimates.verified_sample import Share, wilson_interval
from quality.judges.calibration import calibrate
from quality.judges.known_pairs import graded_pairs
from quality.judges.panel import Panel, rule_based_judges
from quality.verification.job import Ruling, VerificationJob
from quality.verification.verifier import Verifier
from tiers.final_answer.quantities import asks_for_number
from tiers.final_answer.short_answers import options
from tiers.tier import AnswerEnd, Delta, GenerationRequest, Tier, TierLoad, Usage

# Prices of an answer by tier, in units of tier 1 (the laboratory's).
PRICES = (1.0, 2.5, 10.0, 30.0)
# P that a wrong answer is the prompt's most tempting one: two wrong answers among four options are then alike in about
# 60% of cases, as measured of real models (Kim et al. 2025, "Correlated Errors in Large Language Models").
TEMPTING = 0.755

Lasting = Literal["drawn again", "the same"]
"""Planted errors: each answer draws for itself whether it is wrong, or a prompt's answers are always wrong alike."""


class Question(msgspec.Struct, frozen=True):
    """A prompt with its right answer, wrong ones, the most tempting first, and by tier whether its model is right."""

    text: str
    right: str
    wrong: tuple[str, ...]
    outcomes: tuple[bool, ...]

    def no_worse(self, tier: int) -> bool:
        """Whether the answer of `tier` is right, or the strongest tier's model is wrong without a planted error."""
        return self.outcomes[tier - 1] or not self.outcomes[-1]


class Labels(msgspec.Struct, frozen=True, kw_only=True):
    """What verification said of the answers of the weaker tiers. `right_as_worse`: of the right answers, those labelled
    worse; `false_worse`: of the labels "worse", those of answers that are no worse, because they are right or the
    strongest tier's model is wrong too. `worse_kept`: of the worse answers, those labelled so. `no_worse`: of the
    labels that teach; `true_no_worse`: in truth, of all answers. `cost`: of verification, in units of an answer of
    tier 1, per verified answer."""

    answers: int
    right_as_worse: Share
    false_worse: Share
    worse_kept: Share
    uncertain: Share
    no_worse: Share
    true_no_worse: Share
    cost: float


class ErringTier(Tier):
    """Answers as recorded; the strongest is wrong about a further share `rate` of what it would get right."""

    def __init__(self, number: int, questions: Sequence[Question], rate: float, lasting: Lasting) -> None:
        self.name, self.number, self.model, self.max_context = f"tier-{number}", number, f"model-{number}", 1 << 20
        self._questions = {question.text: question for question in questions}
        self._rate, self._lasting = rate, lasting

    async def start(self) -> None:
        """Nothing to start."""

    async def close(self) -> None:
        """Nothing to close."""

    async def generate(self, request: GenerationRequest) -> AsyncIterator[Delta]:
        """Yield the whole answer at once."""
        assert request.messages is not None
        sample = "again" if request.sampling.temperature else "first"
        yield Delta(text=self.answer(self._questions[request.messages[-1].content], sample), finish_reason="stop")
        yield Delta(end=AnswerEnd(usage=Usage(prompt_tokens=0, completion_tokens=1)))

    def answer(self, question: Question, sample: str = "first") -> str:
        """Return the answer to `question`; errors that are drawn again depend on the `sample`."""
        right = question.outcomes[self.number - 1]
        place: tuple[object, ...] = (question.text, self.number)
        if right and self._rate:
            planted = ("planted", *place) if self._lasting == "the same" else ("planted", *place, sample)
            if uniform(*planted) < self._rate:
                right, place = False, planted
        if right:
            return question.right
        if uniform("tempting", *place) < TEMPTING or len(question.wrong) == 1:
            return question.wrong[0]
        others = question.wrong[1:]
        return others[int(uniform("other", *place) * len(others))]

    def count_prompt_tokens(self, request: GenerationRequest) -> int:
        """Prompts are free."""
        return 0

    def load(self) -> TierLoad:
        """Always idle."""
        return TierLoad()


def recorded_questions(rows: Sequence[OutcomeRow]) -> list[Question]:
    """Return the prompts with a checkable answer for which the outcomes of all four models are recorded."""
    models = [model for model in TIER_MODELS["llmrouter"] if model is not None]
    found = []
    for row in rows:
        answers = _answers(row.prompt)
        if answers is not None and all(model in row.outcomes for model in models):
            outcomes = tuple(row.outcomes[model] >= RIGHT for model in models)
            found.append(Question(row.prompt, answers[0], tuple(answers[1:]), outcomes))
    return found


def _answers(prompt: str) -> list[str] | None:
    """Return made answers in an order of their own, the right one first; None if none can be checked."""
    if offered := options(prompt):
        letters = sorted(offered, key=lambda letter: uniform("letter", prompt, letter))
        return [f"The answer is {letter}." for letter in letters] if len(letters) > 2 else None
    return [f"The answer is {number}." for number in (17, 23, 5, 71)] if asks_for_number(prompt) else None


async def labels_under_errors(questions: Sequence[Question], *, rate: float, lasting: Lasting, opinions: int) -> Labels:
    """Verify every weaker tier's answer to all `questions`, with errors of the strongest planted at `rate`."""
    tiers = len(questions[0].outcomes)
    ladder = [
        ErringTier(number, questions, rate if number == tiers else 0.0, lasting) for number in range(1, tiers + 1)
    ]
    generated = graded_pairs()
    judges = rule_based_judges()
    verifier = Verifier(
        ladder,
        Panel(judges, {judge.name: await calibrate(judge, generated) for judge in judges}),
        lambda tier, usage: PRICES[tier - 1] * usage.completion_tokens,
        max_tokens=64,
        opinions=opinions,
    )
    found: list[tuple[Question, Ruling]] = []
    for number, (question, tier) in enumerate(_served(questions, ladder)):
        [ruling] = await verifier.verify(_job(number, question, tier))
        found.append((question, ruling))
    return _counted(found)


def _served(questions: Sequence[Question], ladder: Sequence[ErringTier]) -> Iterator[tuple[Question, ErringTier]]:
    return ((question, tier) for question in questions for tier in ladder[:-1])


def _job(number: int, question: Question, tier: ErringTier) -> VerificationJob:
    return VerificationJob(
        verification_id=number,
        request_id=f"req-{number}",
        key_id=None,
        purpose="sample",
        served_tier=tier.number,
        messages=[{"role": "user", "content": question.text}],
        answer=tier.answer(question),
        attempts=0,
    )


def _counted(found: Sequence[tuple[Question, Ruling]]) -> Labels:
    worse = [question.no_worse(ruling.tier) for question, ruling in found if ruling.label == "worse"]
    said = [ruling.label != "worse" for _, ruling in found if ruling.teaches]
    good = sum(question.no_worse(ruling.tier) for question, ruling in found)
    right = [ruling.label == "worse" for question, ruling in found if question.outcomes[ruling.tier - 1]]
    return Labels(
        answers=len(found),
        right_as_worse=wilson_interval(sum(right), len(right)),
        false_worse=wilson_interval(sum(worse), len(worse)),
        worse_kept=wilson_interval(len(worse) - sum(worse), len(found) - good),
        uncertain=wilson_interval(sum(ruling.label == "uncertain" for _, ruling in found), len(found)),
        no_worse=wilson_interval(sum(said), len(said)),
        true_no_worse=wilson_interval(good, len(found)),
        cost=sum(ruling.cost_usd for _, ruling in found) / len(found),
    )
