"""Self-consistency: the majority's first sample if answers can be compared, plain decoding otherwise."""

from contextlib import aclosing
from random import Random

import hypothesis.strategies as st
import pytest
from hypothesis import given

from inference_core.protocol import SamplingParams
from inference_core.tokenization.tokenizer import Tokenizer
from tests.tiers.tier_world import GREEDY, ScriptedCore, chat, collect, local_tier, tier_spec
from tiers.catalog.tier_spec import SelfConsistencySpec
from tiers.local.local_tier import LocalTier
from tiers.local.self_consistency import AnswerKind, answer_kind, extract_answer, majority, still_needed
from tiers.tier import GenerationRequest

SPEC = SelfConsistencySpec(samples=5, temperature=0.6)
SAMPLES = ["It is 12.", "So the sum is 13.", "12 it is", "I do not know.", "13, I think"]
QUESTION = "What is 5 + 8?"


async def voter(tokenizer: Tokenizer, texts: list[str]) -> tuple[LocalTier, ScriptedCore]:
    core = ScriptedCore(tokenizer, lambda add: texts[: add.n])
    tier = local_tier(tier_spec(SPEC), core, tokenizer)
    await tier.start()
    return tier, core


async def test_the_first_sample_of_the_majority_is_the_answer_and_all_are_billed(tokenizer: Tokenizer) -> None:
    texts = ["It is 12.", "So the sum is 13.", "I do not know.", "13, I think", "The answer is 13"]
    tier, core = await voter(tokenizer, texts)
    (answer,), usage = await collect(tier, chat(QUESTION, max_tokens=50))
    assert answer.text == "So the sum is 13."
    assert answer.finish_reason == "stop"
    assert answer.token_ids == tokenizer.encode("So the sum is 13.")
    assert usage.completion_tokens == sum(len(tokenizer.encode(t)) for t in texts)
    assert core.added[0].n == 5
    assert core.added[0].sampling.temperature == 0.6


async def test_a_tie_goes_to_the_earlier_answer(tokenizer: Tokenizer) -> None:
    tier, _ = await voter(tokenizer, SAMPLES)
    (answer,), _ = await collect(tier, chat(QUESTION, max_tokens=50))
    assert answer.text == "It is 12."


async def test_each_choice_has_its_own_vote(tokenizer: Tokenizer) -> None:
    tier, core = await voter(tokenizer, [*SAMPLES, "7", "8", "8", "9", "8."])
    answers, _ = await collect(tier, chat(QUESTION, n=2, max_tokens=50))
    assert [a.text for a in answers] == ["It is 12.", "8"]
    assert core.added[0].n == 10


async def test_an_open_question_is_decoded_once_as_asked(tokenizer: Tokenizer) -> None:
    tier, core = await voter(tokenizer, ["Roses are red."])
    (answer,), usage = await collect(tier, chat("Write a poem about roses", max_tokens=50))
    assert answer.text == "Roses are red."
    assert (core.added[0].n, core.added[0].sampling.temperature) == (1, 0.0)
    assert usage.completion_tokens == len(tokenizer.encode("Roses are red."))


async def test_a_raw_prompt_is_decoded_once(tokenizer: Tokenizer) -> None:
    tier, core = await voter(tokenizer, ["13"])
    await collect(tier, GenerationRequest(request_id="r", sampling=GREEDY, prompt=QUESTION, max_tokens=9))
    assert core.added[0].n == 1


@pytest.mark.parametrize(
    ("sampling", "seed"),
    [
        (SamplingParams(temperature=0.0), 0),  # greedy callers may expect the same answer twice
        (SamplingParams(temperature=0.0, seed=5), 5),
        (SamplingParams(temperature=1.0, seed=5), 5),
        (SamplingParams(temperature=1.0), None),
    ],
)
async def test_samples_are_seeded_as_the_request_promises(
    tokenizer: Tokenizer, sampling: SamplingParams, seed: int | None
) -> None:
    tier, core = await voter(tokenizer, SAMPLES)
    await collect(tier, chat(QUESTION, sampling=sampling, max_tokens=50))
    assert core.added[0].sampling.seed == seed


async def test_the_winners_log_probabilities_come_with_it(tokenizer: Tokenizer) -> None:
    tier, _ = await voter(tokenizer, SAMPLES)
    sampling = SamplingParams(temperature=0.0, logprobs=1)
    (answer,), _ = await collect(tier, chat(QUESTION, sampling=sampling, max_tokens=50))
    assert b"".join(t.token_bytes for t in answer.logprobs).decode() == answer.text == "It is 12."


async def test_samples_that_cannot_change_the_vote_are_ended(tokenizer: Tokenizer) -> None:
    tier, core = await voter(tokenizer, ["13", "13.", "so 13", "on and on…", "and on…"])
    (answer,), usage = await collect(tier, chat(QUESTION, max_tokens=200))
    assert answer.text == "13"
    assert {index for _, index in core.aborted} == {3, 4}
    assert usage.completion_tokens < 30
    assert not core.live


async def test_a_sample_that_could_still_be_the_one_that_is_shown_goes_on(tokenizer: Tokenizer) -> None:
    """The text is that of the full vote, whichever sample ends first."""
    first = "Let me see: five and eight, that is 13"
    tier, core = await voter(tokenizer, [first, "13", "13.", "13!", "on and on…"])
    (answer,), _ = await collect(tier, chat(QUESTION, max_tokens=200))
    assert answer.text == first
    assert {index for _, index in core.aborted} == {4}


async def test_no_sample_is_ended_while_the_vote_is_open(tokenizer: Tokenizer) -> None:
    tier, core = await voter(tokenizer, ["13", "12", "13.", "12.", "I think, after a long while, that it is 12"])
    (answer,), _ = await collect(tier, chat(QUESTION, max_tokens=200))
    assert answer.text == "12"
    assert not core.aborted


async def test_closing_before_the_vote_leaves_nothing_in_the_core(tokenizer: Tokenizer) -> None:
    tier, core = await voter(tokenizer, ["1", "2…", "3…", "4…", "5…", "6", "6", "6", "6", "6"])
    async with aclosing(tier.generate(chat(QUESTION, n=2, max_tokens=100))) as deltas:
        assert (await anext(deltas)).index == 1
        assert core.live
    assert not core.live


@pytest.mark.parametrize(
    ("prompt", "kind"),
    [
        ("What is 12 + 30?", "number"),
        ("12*7 =", "number"),
        ("Calculate 3/4 of 16 / 2.", "number"),
        ("How many planets are there?", "number"),
        ("Tom has 3 apples and buys 4 more. How many apples does he have now?", "number"),
        ("Which is the largest? Reply with just the number: 3, 9, 4", "number"),
        ("Which planet is the largest?\nA) Mars\nB) Jupiter\nC) Venus", "choice"),
        ("Pick one: (A) red (B) blue", "choice"),
        ("Vitamin A. or vitamin B. for the eyes", None),
        ("Is water wet? Answer yes or no.", "yes-no"),
        ("The sky is green. True or false?", "yes-no"),
        ("Is Paris the capital of France?", "yes-no"),
        ("Write a function that adds 2 + 2", None),
        ("Explain how many factors lead to inflation " + "in the long run and in the short " * 4, None),
        ("Is it better to rent or to buy?", None),
        ("Is there a way to sort a list?", None),
        ("Tell me about Rome.", None),
        ("Robyn sends mail. " * 10 + "Seven went to work. How many did not?", "number"),
        ("What is the difference between 40 pebbles and half of them?", "number"),
        ("Translate to French: how many cats are there?", None),
        ("", None),
    ],
)  # fmt: skip
def test_prompts_for_short_checkable_answers_are_recognised(prompt: str, kind: AnswerKind | None) -> None:
    assert answer_kind(prompt) == kind


def test_the_kind_of_a_long_prompt_is_found_from_its_ends() -> None:
    filler = "The committee met on the third of May and decided nothing. " * 10_000
    assert answer_kind(f"{filler}\nA) cats\nB) dogs") == "choice"
    assert answer_kind(f"Answer yes or no.\n{filler}") == "yes-no"
    assert answer_kind(f"{filler}\nA) cats\nB) dogs\n{filler}") is None


@pytest.mark.parametrize(
    ("kind", "text", "answer"),
    [
        ("number", "5 + 8 = 13", "13"),
        ("number", "The answer is 42, since 6 x 7 = 42 and not 43.", "42"),
        ("number", "First 3, then 4.\n#### 1,234.50", "2469/2"),
        ("number", "It is 3/4.", "3/4"),
        ("number", "It is 0.75.", "3/4"),
        ("number", r"Hence \boxed{-7} holds, see 3", "-7"),
        ("number", "10-3", None),
        ("number", "9" * 5000, None),
        ("number", "The sum of 3 and 4 is 7.", "7"),
        ("number", "At 17:40 on 2024-05-01", None),
        ("number", "+5", "5"),
        ("number", "no idea", None),
        ("choice", "B", "B"),
        ("choice", "B) Jupiter", "B"),
        ("choice", "A planet like that: the answer is (C).", "C"),
        ("choice", "It must be (D), as A is wrong", "D"),
        ("choice", "A good question.", None),
        ("yes-no", "Yes, it is.", "yes"),
        ("yes-no", "Yes and no, but the answer is no.", "no"),
        ("yes-no", "That is false.", "no"),
        ("yes-no", "Nobody knows.", None),
    ],
)
def test_answers_are_read_in_a_normal_form(kind: AnswerKind, text: str, answer: str | None) -> None:
    assert extract_answer("Which?\n(A) Mars (B) Jupiter (C) Venus (D) Saturn", kind, text) == answer


@pytest.mark.parametrize(
    ("answers", "running", "needed"),
    [
        ([None] * 5, {0, 1, 2, 3, 4}, {0, 1, 2, 3, 4}),
        (["1", "1", "1", None, None], {3, 4}, set()),
        ([None, "1", "1", "1", None], {0, 4}, {0}),
        (["1", "1", None, None, None], {2, 3, 4}, {2, 3, 4}),
        (["1", "1", "2", None, None], {3, 4}, {3, 4}),
        (["1", "1", "1", None, "2"], {3}, set()),
        (["1", "1", "2", None, None], {3}, {3}),
        ([None, None, None, None, None], {4}, {4}),
        (["1", "2", "1", "2", None], set(), set()),
    ],
)
def test_a_vote_waits_for_those_alone_who_can_change_its_result(
    answers: list[str | None], running: set[int], needed: set[int]
) -> None:
    assert still_needed(answers, running) == needed


@given(
    answers=st.lists(st.sampled_from(["1", "2", "3", None]), min_size=1, max_size=7),
    order=st.randoms(use_true_random=False),
)
def test_ending_samples_early_never_changes_the_winner(answers: list[str | None], order: Random) -> None:
    ending = list(range(len(answers)))
    order.shuffle(ending)
    ended: list[str | None] = [None] * len(answers)
    running = set(ending)
    for sample in ending:
        if sample in running:
            running.discard(sample)
            ended[sample] = answers[sample]
            running = still_needed(ended, running)
    assert majority(ended) == majority(answers)


@pytest.mark.parametrize(
    ("answers", "winner"),
    [(["1", "2", "2"], 1), (["1", "2"], 0), ([None, "2", "1"], 1), ([None, None], 0), ([None, None, "3"], 2)],
)
def test_votes_are_counted_and_abstentions_are_not(answers: list[str | None], winner: int) -> None:
    assert majority(answers) == winner


async def test_the_winner_keeps_the_stop_string_that_ended_it(tokenizer: Tokenizer) -> None:
    tier, _ = await voter(tokenizer, [f"{text} END" for text in SAMPLES])
    (answer,), _ = await collect(tier, chat(QUESTION, max_tokens=50, stop=(" END",)))
    assert (answer.text, answer.stop_sequence) == ("It is 12.", " END")
