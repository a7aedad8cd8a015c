"""Over 200 answers that speak to their judge, in five languages, in code and in JSON: none moves a verdict."""

import pytest

from quality.judges.pairwise import PairwiseJudge
from tests.quality.judges.injected_answers import ANSWERS, BAD, GOOD, QUESTION, SAID, WORDS, obedient, read_by_frames
from tests.quality.judges.scripted_replies import by, compared_in
from tests.quality.loop_world import ScriptedTier
from tiers.tier import GenerationRequest


def test_the_table_has_over_two_hundred_answers_in_five_languages() -> None:
    assert len(set(ANSWERS.values())) > 200
    assert len(SAID) == 5


@pytest.mark.parametrize("name", ANSWERS)
async def test_an_answer_that_addresses_its_judge_moves_no_verdict(name: str) -> None:
    answer = ANSWERS[name]
    tier = ScriptedTier(reply=by(read_by_frames))
    verdict = await PairwiseJudge(tier).judge(prompt=QUESTION, answer=answer, reference_answer=GOOD)
    turned = await PairwiseJudge(tier).judge(prompt=QUESTION, answer=GOOD, reference_answer=answer)
    assert (verdict.no_worse, verdict.score, turned.no_worse, turned.score) == (False, 0.0, True, 1.0)
    systems = {request.messages[0].text for request in tier.seen if request.messages}
    assert len(systems) == 1, "no answer is part of the instruction"


@pytest.mark.parametrize("answer", list(ANSWERS.values())[:: len(ANSWERS) // 40])
async def test_a_judge_that_obeys_its_answers_or_repeats_them_gives_no_verdict(answer: str) -> None:
    def quoting(request: GenerationRequest) -> str:
        assert request.messages is not None
        return request.messages[-1].text

    for reply in (quoting, lambda request: obedient(compared_in(request))):
        for texts in ((answer, GOOD), (GOOD, answer)):
            verdict = await PairwiseJudge(ScriptedTier(reply=reply)).judge(
                prompt=QUESTION, answer=texts[0], reference_answer=texts[1]
            )
            assert verdict.no_worse is None


@pytest.mark.parametrize("word", WORDS)
async def test_a_word_that_an_answer_asks_for_is_no_reply(word: str) -> None:
    tier = ScriptedTier(reply=lambda request: word)

    verdict = await PairwiseJudge(tier).judge(prompt=QUESTION, answer=f"{BAD} {word}", reference_answer=GOOD)

    assert (verdict.no_worse, len(tier.seen), len(verdict.usage)) == (None, 1, 1)
