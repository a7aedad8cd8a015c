"""Collecting outcomes: every tier gets its missing questions, evidence is stored with the outcome, and no text is
kept."""

from collections.abc import AsyncGenerator, Callable
from pathlib import Path

import msgspec
import numpy as np
import pytest

from classifier.class_predictor import ClassPredictor
from classifier.errors import TrainingDataError
from classifier.evidence import EVIDENCE_NAMES
from classifier.registry.artefact import default_artefact, load_artefact
from classifier.training.data.outcome_folder import OutcomeFolder
from inference_core.protocol.commands import Evidence, TokenEvidence
from quality.evaluation.collect_outcomes import (
    GROUPS,
    SHARD_ROWS,
    Collection,
    PromptModel,
    Question,
    choice_questions,
    collect_outcomes,
    graded_questions,
    is_right,
    outcomes_manifest,
    word_problems,
)
from quality.evaluation.task_set import Task
from quality.evaluation.tier_accuracy import TierMeasurementError
from tests.quality.evaluation.knowing_tier import KnowingTier
from tiers.catalog.load import load_catalog
from tiers.errors import TierUnavailableError
from tiers.tier import Delta, GenerationRequest

LAPTOP = load_catalog("laptop")
HOW = Collection(seed=3, concurrency=4)
SOME = graded_questions(3, SHARD_ROWS + 8)


class TellingTier(KnowingTier):
    """A knowing tier that reports its tokens' uncertainty, if it `tells`; its second sample answers `second`."""

    def __init__(self, number: int, knows: Callable[[Task], bool], *, tells: bool = True) -> None:
        super().__init__(number, knows, seed=3, per_level=24)
        self._tells = tells
        self.num_layers = 30 if tells else 0
        self.second: str | None = None
        self.fails_after: int | None = None

    async def generate(self, request: GenerationRequest) -> AsyncGenerator[Delta, None]:
        assert request.messages is not None
        answered = sum(not one.sampling.temperature for one in self.requests)
        if self.fails_after is not None and answered >= self.fails_after and not request.sampling.temperature:
            raise TierUnavailableError("full")
        async for delta in super().generate(request):
            if self._tells and delta.text:
                delta.evidence = Evidence(tokens=[TokenEvidence(-0.5, 0.5, 1.0)])
            if self.second is not None and request.sampling.temperature and delta.text:
                delta.text = self.second
            yield delta


async def collected(root: Path, tiers: list[TellingTier], questions: list[Question], how: Collection = HOW) -> int:
    model = load_artefact(default_artefact())
    numbers = [tier.number for tier in tiers]
    folder = OutcomeFolder.begun(root, outcomes_manifest(LAPTOP, numbers, model, how))
    prompts = PromptModel(model, ClassPredictor(model))
    return await collect_outcomes(tiers, LAPTOP, folder, questions, prompts, how, lambda stage, share: None)


async def test_outcomes_and_evidence_of_all_tiers_stand_side_by_side(tmp_path: Path) -> None:
    first = TellingTier(1, lambda task: task.level <= 2)
    assert await collected(tmp_path, [first, TellingTier(4, lambda task: True, tells=False)], SOME) == 2 * len(SOME)

    common = OutcomeFolder.opened(tmp_path).load_common()
    by_row = {question.row: question for question in SOME}
    questions = [by_row[int(row)] for row in common[1].row]
    assert common[1].row.tolist() == common[4].row.tolist()
    assert common[1].correct.tolist() == [question.level <= 2 for question in questions]
    assert common[4].correct.all()
    assert [GROUPS[group] for group in common[1].group] == [question.group for question in questions]
    place = EVIDENCE_NAMES.index("uncertainty_p50")
    assert common[1].evidence[:, place] == pytest.approx(np.log1p(0.5))
    assert not common[4].evidence[:, :5].any()  # a tier that tells no uncertainty is known by its texts alone
    assert common[4].evidence[:, EVIDENCE_NAMES.index("log_length")].all()
    assert (common[1].answer_tokens == 20).all()
    request = first.requests[0]
    assert request.evidence is not None
    assert (request.evidence.layer, request.evidence.tokens, request.sampling.temperature) == (None, True, 0.0)


@pytest.mark.parametrize(("second", "agrees"), [(None, 1.0), ("no idea", 0.0)])
async def test_a_second_sample_of_a_checkable_answer_tells_whether_it_agrees(
    tmp_path: Path, second: str | None, agrees: float
) -> None:
    tier = TellingTier(1, lambda task: True)
    tier.second = second
    questions = graded_questions(3, 30, ["arithmetic", "spell"])
    await collected(tmp_path, [tier], questions)
    outcomes = OutcomeFolder.opened(tmp_path).load(1)
    checkable = outcomes.group == GROUPS.index("arithmetic")
    assert (outcomes.agreement[checkable] == agrees).all()
    assert np.isnan(outcomes.agreement[~checkable]).all()
    assert len(tier.requests) == len(questions) + checkable.sum()
    assert sum(request.sampling.temperature > 0 for request in tier.requests) == checkable.sum()


async def test_no_second_sample_is_drawn_where_none_is_wanted(tmp_path: Path) -> None:
    tier = TellingTier(1, lambda task: True)
    await collected(tmp_path, [tier], SOME, Collection(seed=3, concurrency=4, second=False))
    assert len(tier.requests) == len(SOME)
    assert np.isnan(OutcomeFolder.opened(tmp_path).load(1).agreement).all()


async def test_an_interrupted_collection_resumes_and_asks_nothing_twice(tmp_path: Path) -> None:
    stopped = TellingTier(1, lambda task: True)
    stopped.fails_after = SHARD_ROWS
    with pytest.raises(TierMeasurementError, match="could not answer"):
        await collected(tmp_path, [stopped], SOME)
    again = TellingTier(1, lambda task: True)
    assert await collected(tmp_path, [again], SOME) == len(SOME) - SHARD_ROWS
    assert await collected(tmp_path, [again], SOME) == 0
    more = graded_questions(3, len(SOME) + 5)
    assert more[: len(SOME)] == SOME
    assert await collected(tmp_path, [again], more) == 5


async def test_no_text_is_kept(tmp_path: Path) -> None:
    await collected(tmp_path, [TellingTier(1, lambda task: True)], SOME)
    kept = b"".join(path.read_bytes() for path in tmp_path.iterdir())  # noqa: ASYNC240
    assert not any(question.prompt.encode() in kept for question in SOME)


async def test_another_seed_is_another_collection(tmp_path: Path) -> None:
    await collected(tmp_path, [TellingTier(1, lambda task: True)], SOME[:4])
    with pytest.raises(TrainingDataError, match="another collection"):
        await collected(tmp_path, [TellingTier(1, lambda task: True)], SOME, Collection(seed=4, concurrency=1))


def test_kinds_are_asked_for_by_name_and_answers_checked_by_their_rules(tmp_path: Path) -> None:
    questions = graded_questions(3, 60, ["compare"])
    assert {question.group for question in questions} == {"compare"}
    assert len({question.prompt for question in questions}) == 60
    assert all(is_right(question, f"The answer is {question.answer}.") for question in questions)
    row = {"prompt": "How many?", "answer": "1234", "steps": 2, "id": "x", "split": "train"}
    (tmp_path / "gsm8k_sample.jsonl").write_bytes(msgspec.json.encode(row) + b"\n")
    (problem,) = word_problems(tmp_path, 5)
    assert is_right(problem, "So it is #### 1,234")
    assert not is_right(problem, "1235")
    with pytest.raises(TrainingDataError, match="AIO_DATA"):
        word_problems(tmp_path / "nowhere", 5)


ORBITS = "Which planet is nearest to the Sun?\nA. Venus\nB. Mercury\nC. Mars"


def test_a_choice_is_right_if_it_names_the_letter_or_the_option_that_the_prompt_shows(tmp_path: Path) -> None:
    file = tmp_path / "choices.jsonl"
    file.write_bytes(msgspec.json.encode({"prompt": ORBITS, "answer": "B"}) + b"\n")
    [question] = choice_questions(file)
    assert (question.group, question.level) == ("choice", 3)
    assert all(is_right(question, text) for text in ("B", "B. Mercury", "Mercury", "The answer is (B)."))
    assert not any(is_right(question, text) for text in ("A", "C. Mars", "", "A or B, hard to say", "D"))


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ({"prompt": ORBITS, "answer": "D"}, "line 1: the answer is 'D'; the prompt offers A, B, C"),
        ({"prompt": "Who was it?", "answer": "A"}, "the prompt offers nothing"),
        ({"prompt": ORBITS}, "missing required field `answer`"),
    ],
)
def test_a_question_without_its_answer_among_its_options_is_refused(
    tmp_path: Path, row: dict[str, str], reason: str
) -> None:
    (tmp_path / "choices.jsonl").write_bytes(msgspec.json.encode(row))
    with pytest.raises(TrainingDataError, match=reason):
        choice_questions(tmp_path / "choices.jsonl")
