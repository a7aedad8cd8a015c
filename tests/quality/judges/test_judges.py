"""Judges: their decisions and abstentions, and that only judges of known reliability make labels."""

from functools import cache

import msgspec
import numpy as np
import pytest
from numpy.typing import NDArray
from sqlalchemy.ext.asyncio import AsyncEngine

from benchmarks.replay.comparisons import Comparison, as_written
from quality.evaluation.collect_outcomes import graded_questions
from quality.judges.calibration import Calibration, calibrate
from quality.judges.catalogue_pairs import answered_pairs
from quality.judges.json_answers import JsonValidityJudge
from quality.judges.judge import Judge, JudgeVerdict
from quality.judges.known_pairs import graded_pairs
from quality.judges.pairwise import PairwiseJudge, Word
from quality.judges.panel import ENOUGH, Panel, measure, rule_based_judges, standing_panel, store_calibration
from quality.judges.rules import CodeJudge, ExactJudge, SimilarityJudge
from tests.quality.judges.scripted_replies import by, compared_in
from tests.quality.loop_world import ScriptedTier, unavailable
from tiers.catalog.load import load_catalog
from tiers.errors import TierUnavailableError
from tiers.tier import GenerationRequest

MC = "What is bought with stock?\nA. fishing rod\nB. machine gun\nC. double in value"


async def _exact(prompt: str, answer: str, reference: str) -> bool | None:
    return (await ExactJudge().judge(prompt=prompt, answer=answer, reference_answer=reference)).no_worse


@pytest.mark.parametrize(
    ("answer", "reference", "verdict"),
    [
        ("7", "The answer is 7.", True),
        ("3 + 4 = 7", "**7**", True),
        ("7.0", "7", True),
        ("$1,200", "1200 dollars", True),
        ("#### 12", r"So we get \boxed{12}", True),
        ("8", "7", False),
        ("-7", "7", False),
        ("I cannot say.", "7", None),
        ("7", "I cannot say.", None),
        ("I cannot say.", "I cannot say.", None),
        ("It is 3 or 4.", "7", None),
        ("You leave at 17:40.", "17", None),
        ("0.75", "It is 3/4.", True),
        ("1e999", "1e998", False),
        ("9" * 5000, "7", None),
    ],
)
async def test_final_numbers_decide_where_a_number_was_asked_for(
    answer: str, reference: str, verdict: bool | None
) -> None:
    assert await _exact("What is 3 + 4?", answer, reference) is verdict


@pytest.mark.parametrize(
    ("answer", "reference", "verdict"),
    [
        ("C", "C. double in value", True),
        ("(C)", "The answer is C.", True),
        ("double in value", "**C**", True),
        ("B. machine gun", "C", False),
        ("The answer is a fishing rod", "A", True),
        ("The answer is a mystery", "A", None),
        ("A gun of some kind, perhaps.", "A", None),
        ("E", "C", None),
    ],
)
async def test_option_letters_decide_multiple_choice(answer: str, reference: str, verdict: bool | None) -> None:
    assert await _exact(MC, answer, reference) is verdict


async def test_options_in_one_line_are_options_too() -> None:
    assert await _exact("Pick one: (A) red (B) blue", "It must be (B), I think", "blue") is True
    assert await _exact("Pick one: (A) red (B) blue", "It is (A) or (B), who knows?", "blue") is None


async def test_the_same_words_with_a_wrong_number_fail() -> None:
    prompt = "When does my train to Lyon arrive?"

    assert await _exact(prompt, "Your train arrives at 17:45.", "Your train arrives at 17:40.") is False
    assert await _exact(prompt, "Your train arrives at 17:40.", "Your train arrives at 17:40.") is True


async def test_open_questions_are_not_judged_even_if_the_answers_are_equal() -> None:
    assert await _exact("Tell me about Lyon.", "A city in France.", "A city in France.") is None


async def test_texts_asked_for_to_the_letter_are_compared_as_a_whole() -> None:
    prompt = "Repeat the following words exactly and write nothing else: red apple"

    assert await _exact(prompt, '"Red apple."', "red apple") is True
    assert await _exact(prompt, "red apples", "red apple") is False


@pytest.mark.parametrize(
    ("answer", "reference", "verdict"),
    [
        ('{"a": 1, "b": 2}', '```json\n{"b": 2, "a": 1}\n```', True),
        ('{"a": 1', '{"a": 1}', False),
        ('Sure: {"a": 1}', '{"a": 1}', False),
        ('{"a": NaN}', '{"a": 1}', False),
        ('{"a": 2}', '{"a": 1}', None),
        ("no", "neither", None),
        ('{"a": 1}', "Your file lacks a comma.", None),
        ("[" * 100_000, "{}", False),
    ],
)
async def test_json_answers_must_parse(answer: str, reference: str, verdict: bool | None) -> None:
    judged = await JsonValidityJudge().judge(
        prompt="Return the person as a JSON object.", answer=answer, reference_answer=reference
    )

    assert judged.no_worse is verdict


PERSON = {"type": "object", "properties": {"age": {"type": "integer"}}, "required": ["age"]}


@pytest.mark.parametrize(
    ("answer", "reference", "verdict"),
    [
        ('{"age": "7"}', '{"age": 7}', False),
        ('{"years": 7}', '{"age": 7}', False),
        ('```json\n{"age": 7}\n```', '{"age": 7}', False),
        ('{"age": 7}', '{"age": 7.0}', True),
        ('{"age": 7}', '{"age": "seven"}', True),
        ('{"age": "7"}', '{"age": "seven"}', None),
        ('{"age": 8}', '{"age": 7}', None),
        ('{"age": true}', '{"age": 1}', False),
    ],
)
async def test_json_answers_must_obey_the_schema_of_their_request(
    answer: str, reference: str, verdict: bool | None
) -> None:
    form = {"type": "json_schema", "json_schema": {"name": "person", "schema": PERSON}}

    judged = await JsonValidityJudge().judge(
        prompt="How old is she?", answer=answer, reference_answer=reference, response_format=form
    )

    assert judged.no_worse is verdict


async def test_any_json_object_will_do_where_no_schema_was_given() -> None:
    form = {"type": "json_object"}
    judged = await JsonValidityJudge().judge(prompt="Who?", answer="[1]", reference_answer="{}", response_format=form)

    assert judged.no_worse is False


async def test_a_schema_that_is_not_understood_judges_nothing() -> None:
    form = {"type": "json_schema", "json_schema": {"schema": {"type": "thing"}}}
    judged = await JsonValidityJudge().judge(prompt="?", answer="x", reference_answer="1", response_format=form)

    assert judged.no_worse is None
    assert "thing" in judged.reason


ADD = "def add(a, b):\n    return a + b"


@pytest.mark.parametrize(
    ("answer", "reference", "verdict"),
    [
        (ADD, f"Here:\n```python\n{ADD}  # sum\n```", True),
        (ADD.replace(":", ""), ADD, False),
        (f"```python\n{ADD[:-1]}\n```", ADD, False),
        ("I am sorry, I cannot.", ADD, False),
        ("sorry", ADD, False),
        (ADD, "def add(a, b", None),
        ("def add(a, b", "def add(a, b", None),
        ("The sum is easy.\n```", "One adds them.\n```\n", None),
        ("sorry", "I am sorry, I cannot.", None),
        (f"```javascript\n{ADD[:-1]}\n```", ADD, None),
        ("```\nfunction add(a, b) {\n  return a + b;\n}\n```", ADD, None),
        ("```\ndef add(a, b)\n  a + b\nend\n```", ADD, None),
        (f"The function adds both numbers here.\n{ADD}", ADD, None),
        ("```python\n>>> add(1, 2)\n3\n```\n", ADD, None),
        ("```\npip install add\n```", ADD, None),
        (f"```\n{ADD}\n```\nIt prints\n```\nthe sum of both\n```", ADD, True),
        (f"```bash\npip install add\n```\n```python\n{ADD}\n```", ADD, True),
        (f"```python\nimport math\n```\nThen\n```python\n    {ADD[:-1]}\n```", ADD, False),
        ("def add(a, b):\n    return b + a", ADD, None),
        ("\0", ADD, False),
        ("(" * 50_000, ADD, False),
        ("x" * 100_000, ADD, None),
    ],
)
async def test_code_must_parse(answer: str, reference: str, verdict: bool | None) -> None:
    prompt = "Write a Python function add(a, b) that returns the sum."

    assert (await CodeJudge().judge(prompt=prompt, answer=answer, reference_answer=reference)).no_worse is verdict


async def test_no_rule_compares_with_a_reference_that_is_not_what_was_asked_for() -> None:
    """Equal words with equal numbers would be the same answer, were they one."""
    judges: list[Judge] = rule_based_judges()
    panel = Panel(judges, {judge.name: await calibrate(judge, graded_pairs()) for judge in judges})

    for prompt, broken in (
        ("Return the person as a JSON object.", '{"age": 7'),
        ("Fix this: def add(", "def add(1, 2"),
    ):
        finding = await panel.judge(prompt=f"{prompt} Write code.", answer=broken, reference_answer=broken)
        assert (finding.label, finding.judge) == (None, None)


@pytest.mark.parametrize("prompt", ["Write a function in Rust that adds.", "What does the Python interpreter do?"])
async def test_other_questions_about_programs_are_not_judged_as_python(prompt: str) -> None:
    assert (await CodeJudge().judge(prompt=prompt, answer="fn", reference_answer=ADD)).no_worse is None


async def test_questions_about_json_are_not_json_tasks() -> None:
    judged = await JsonValidityJudge().judge(prompt="What is JSON?", answer="A format.", reference_answer="{}")

    assert judged.no_worse is None


async def test_a_paraphrase_passes_as_a_signal_and_makes_no_label() -> None:
    judge = SimilarityJudge()

    verdict = await judge.judge(
        prompt="Capital of France?",
        answer="The capital of France is Paris.",
        reference_answer="Paris is the capital of France.",
    )

    assert verdict.no_worse is None
    assert verdict.score is not None
    assert verdict.score >= judge.threshold


async def test_similarity_is_not_fooled_by_a_wrong_number_even_with_a_blind_encoder() -> None:
    async def blind(text: str) -> NDArray[np.float32]:
        return np.ones(4, dtype=np.float32)

    judge = SimilarityJudge(embed=blind)

    same = await judge.judge(prompt="", answer="It costs 40 euros", reference_answer="It will cost 40 euros")
    wrong = await judge.judge(prompt="", answer="It costs 45 euros", reference_answer="It will cost 40 euros")

    assert same.score == pytest.approx(1.0)
    assert wrong.score == 0.0


async def test_empty_answers_are_neither_similar_nor_different() -> None:
    async def blind(text: str) -> NDArray[np.float32]:
        return np.ones(4, dtype=np.float32)

    for judge in (SimilarityJudge(), SimilarityJudge(embed=blind)):
        for answer, reference in (("", ""), (" ", "Paris"), ("Paris", "\n")):
            verdict = await judge.judge(prompt="", answer=answer, reference_answer=reference)
            assert (verdict.no_worse, verdict.score) == (None, None)


async def test_different_answers_are_not_similar() -> None:
    verdict = await SimilarityJudge().judge(
        prompt="", answer="Bananas are yellow fruit", reference_answer="The committee met on Tuesday"
    )

    assert verdict.score is not None
    assert verdict.score < 0.5


def _judging_tier(first_is_better: bool | None) -> ScriptedTier:
    """Prefers the text GOOD, or always the first place (None)."""

    def read(asked: Comparison) -> Word:
        if first_is_better is None:
            return "first"
        return "first" if ("GOOD" in asked.first) is first_is_better else "second"

    return ScriptedTier(reply=by(read))


async def test_pairwise_finds_the_better_answer_in_both_orders() -> None:
    judge = PairwiseJudge(_judging_tier(first_is_better=True))

    assert (await judge.judge(prompt="?", answer="GOOD", reference_answer="BAD")).no_worse is True
    assert (await judge.judge(prompt="?", answer="BAD", reference_answer="GOOD")).no_worse is False


async def test_pairwise_abstains_where_the_model_prefers_a_place() -> None:
    verdict = await PairwiseJudge(_judging_tier(None)).judge(prompt="?", answer="BAD", reference_answer="GOOD")

    assert (verdict.no_worse, verdict.score, verdict.place) == (None, None, "first")


async def test_pairwise_abstains_when_the_model_rambles_and_still_reports_its_cost() -> None:
    tier = ScriptedTier(reply=lambda request: " is worse than ".join(compared_in(request).labels[:2]))

    verdict = await PairwiseJudge(tier).judge(prompt="?", answer="a", reference_answer="b")

    assert verdict.no_worse is None
    assert [used.completion_tokens for used in verdict.usage] == [5]


async def test_pairwise_asks_as_idle_work() -> None:
    tier = _judging_tier(first_is_better=True)

    await PairwiseJudge(tier).judge(prompt="?", answer="BAD", reference_answer="GOOD")

    assert [request.priority for request in tier.seen] == [3, 3, 3]


async def test_pairwise_passes_a_failure_of_its_tier_on() -> None:
    with pytest.raises(TierUnavailableError):
        await PairwiseJudge(ScriptedTier(faults=[unavailable()])).judge(prompt="", answer="a", reference_answer="b")


class _Fixed(Judge):
    def __init__(self, name: str, no_worse: bool | None) -> None:
        self.name = name
        self._no_worse = no_worse

    async def judge(
        self, *, prompt: str, answer: str, reference_answer: str, response_format: object = None
    ) -> JudgeVerdict:
        return JudgeVerdict(no_worse=self._no_worse, reason="fixed", score=0.5)


def _calibration(judge: str, right: int, of: int) -> Calibration:
    return Calibration(
        judge=judge,
        true_no_worse=right,
        false_worse=of - right,
        true_worse=right,
        false_no_worse=of - right,
        abstained=0,
    )


async def _find(*judges: Judge, calibrations: list[Calibration]) -> tuple[bool | None, str | None]:
    panel = Panel(judges, {c.judge: c for c in calibrations})
    finding = await panel.judge(prompt="", answer="", reference_answer="")
    return finding.label, finding.judge


async def test_the_first_decisive_trusted_judge_makes_the_label() -> None:
    trusted = [_calibration(name, 90, 100) for name in ("a", "b", "c")]

    label = await _find(_Fixed("a", None), _Fixed("b", False), _Fixed("c", True), calibrations=trusted)

    assert label == (False, "b")


async def test_on_the_panel_a_wrong_number_outweighs_a_model_that_likes_the_answer_and_all_likeness() -> None:
    """QM-03: a check comes before the model, and the model before similarity, which labels nothing even if trusted."""
    judges: list[Judge] = [ExactJudge(), _Fixed("pairwise", True), SimilarityJudge()]
    panel = Panel(judges, {name: _calibration(name, 90, 100) for name in ("exact", "pairwise", "similarity")})

    async def label(prompt: str, answer: str, reference: str) -> tuple[bool | None, str | None]:
        found = await panel.judge(prompt=prompt, answer=answer, reference_answer=reference)
        return found.label, found.judge

    arrival = "When does my train to Lyon arrive?"
    assert await label(arrival, "Your train arrives at 17:45.", "Your train arrives at 17:40.") == (False, "exact")
    assert await label("Tell me about Lyon.", "It is a city.", "Lyon is a French city.") == (True, "pairwise")
    panel.judges.pop(1)
    assert await label("Tell me about Lyon.", "Lyon is a city.", "Lyon is a city.") == (None, None)


async def test_a_judge_of_unknown_reliability_makes_no_label() -> None:
    assert await _find(_Fixed("a", True), calibrations=[]) == (None, "a")


async def test_a_judge_no_better_than_a_coin_makes_no_label_and_the_next_is_asked() -> None:
    calibrations = [_calibration("a", 11, 20), _calibration("b", 90, 100)]

    assert await _find(_Fixed("a", True), calibrations=calibrations) == (None, "a")
    assert await _find(_Fixed("a", True), _Fixed("b", False), calibrations=calibrations) == (False, "b")


async def test_a_judge_that_always_says_the_same_is_never_trusted() -> None:
    pairs = graded_pairs()

    flatterer = await calibrate(_Fixed("flatterer", True), pairs)

    assert flatterer.balanced_accuracy == 0.5
    assert not flatterer.trusted


@pytest.mark.parametrize("judge", rule_based_judges(), ids=lambda judge: judge.name)
async def test_rule_based_judges_are_trusted_on_graded_pairs(judge: Judge) -> None:
    calibration = await calibrate(judge, graded_pairs(seed=3))

    assert calibration.trusted
    assert calibration.false_no_worse == calibration.false_worse == 0


def test_a_calibration_without_pairs_is_not_trusted() -> None:
    assert not _calibration("a", 0, 0).trusted


def test_reliability_survives_storage() -> None:
    stored = msgspec.json.encode(_calibration("a", 9, 10))

    assert msgspec.json.decode(stored, type=Calibration).balanced_accuracy == pytest.approx(0.9)


@cache
def _right_answers() -> dict[str, set[str]]:
    """Of the question of each graded pair."""
    right: dict[str, set[str]] = {}
    for pair in graded_pairs():
        right.setdefault(pair.prompt, set()).update({pair.reference_answer}, {pair.answer} if pair.no_worse else ())
    return right


def better_of(first: bool, second: bool) -> Word:
    """Return what is better of two answers of which it is known whether they are good."""
    return "tie" if first is second else "first" if first else "second"


def _omniscient(asked: Comparison) -> Word:
    """Knows every right answer of the graded pairs and prefers it in either position."""
    good = _right_answers()[asked.question]
    return better_of(as_written(asked.first) in good, as_written(asked.second) in good)


async def test_on_a_catalogues_own_answers_a_judge_is_measured_by_what_was_right() -> None:
    questions = graded_questions(seed=3, count=60, kinds=["arithmetic"])
    right = {question.prompt: question.answer for question in questions}
    # The cheap tier adds one to what is above 8, the strongest gets every fourth number wrong.
    cheap = ScriptedTier(1, reply=lambda asked: str(n + (n > 8)) if (n := int(right[_prompt(asked)])) else "0")
    strong = ScriptedTier(4, reply=lambda asked: r if int(r := right[_prompt(asked)]) % 4 else "0")
    catalog = load_catalog("laptop")

    pairs = await answered_pairs([cheap, strong], catalog, questions, concurrency=4)
    measured = await measure(ExactJudge(), pairs)

    wrong_cheap = {q.prompt for q in questions if int(q.answer) > 8}
    lost = {q.prompt for q in questions if int(q.answer) % 4 == 0}
    assert {pair.prompt for pair in pairs if not pair.no_worse} == wrong_cheap - lost
    # It calls right answers worse when the reference is wrong; its calibration shows that.
    assert (measured.pairs, measured.specificity) == ("answered", 1.0)
    assert measured.false_worse == len(lost)
    assert measured.trusted


async def test_too_few_answers_say_less_than_generated_pairs() -> None:
    pair = graded_pairs()[0]
    assert (await measure(ExactJudge(), [pair] * ENOUGH)).pairs == "generated"


async def test_stored_reliabilities_of_a_catalogue_replace_those_of_generated_pairs(engine: AsyncEngine) -> None:
    await store_calibration(engine, _calibration("exact", 11, 20), "cat", now=1.0, actor="test")

    assert not (await standing_panel(engine, catalogue="cat")).calibrations["exact"].trusted
    assert (await standing_panel(engine, catalogue="other")).calibrations["exact"].trusted


def _prompt(request: GenerationRequest) -> str:
    assert request.messages is not None
    return request.messages[-1].text


async def test_a_pairwise_judge_sits_on_the_panel_only_once_it_has_proved_itself(engine: AsyncEngine) -> None:
    wise, biased = PairwiseJudge(ScriptedTier(reply=by(_omniscient))), PairwiseJudge(_judging_tier(None))
    names = [judge.name for judge in (await standing_panel(engine, wise)).judges]
    assert names == ["json", "code", "exact", "similarity"]

    await store_calibration(engine, await measure(biased, []), "cat", now=1.0, actor="test")
    assert "pairwise" not in [judge.name for judge in (await standing_panel(engine, biased, catalogue="cat")).judges]

    await store_calibration(engine, await measure(wise, []), "cat", now=2.0, actor="test")
    assert "pairwise" not in [judge.name for judge in (await standing_panel(engine, wise, catalogue="other")).judges]
    panel = await standing_panel(engine, wise, catalogue="cat")
    assert panel.judges[-1] is wise
    assert panel.calibrations["pairwise"].trusted
