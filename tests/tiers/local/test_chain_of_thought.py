"""Chain of thought: bounded, split from the answer, one sequence to the core, nothing left behind."""

import asyncio
from contextlib import aclosing

import pytest

from inference_core.protocol import AddRequest, SamplingParams
from inference_core.tokenization.tokenizer import Tokenizer
from tests.tiers.tier_world import GREEDY, Answer, Script, ScriptedCore, chat, collect, local_tier, tier_spec
from tiers.catalog.tier_spec import ChainOfThoughtSpec
from tiers.errors import TierRequestError
from tiers.local.local_tier import LocalTier
from tiers.tier import GenerationRequest, Usage

SPEC = ChainOfThoughtSpec(
    budget_tokens=30,
    instruction="Think first.",
    opening="Let me think.\n",
    end_markers=("</think>", "Final answer:"),
    answer_opening="\nFinal answer:",
    min_answer_tokens=8,
)
THOUGHT = "Two and two are four."


def thinking(add: AddRequest, tokenizer: Tokenizer) -> bool:
    return not tokenizer.decode(add.prompt_token_ids).endswith(SPEC.answer_opening)


async def thinker(
    tokenizer: Tokenizer, thought: str = THOUGHT, answer: str = " 4, of course.", spec: ChainOfThoughtSpec = SPEC
) -> tuple[LocalTier, ScriptedCore]:
    def script(add: AddRequest) -> list[str]:
        return [thought if thinking(add, tokenizer) else answer] * add.n

    return await started(tokenizer, script, spec)


async def started(
    tokenizer: Tokenizer, script: Script, spec: ChainOfThoughtSpec = SPEC, hold: int | None = None
) -> tuple[LocalTier, ScriptedCore]:
    core = ScriptedCore(tokenizer, script, hold=hold)
    tier = local_tier(tier_spec(spec), core, tokenizer)
    await tier.start()
    return tier, core


async def ask(tier: LocalTier, request: GenerationRequest) -> tuple[Answer, Usage]:
    (answer,), usage = await collect(tier, request)
    return answer, usage


async def test_thought_and_answer_are_split_and_both_billed(tokenizer: Tokenizer) -> None:
    tier, _ = await thinker(tokenizer)
    answer, usage = await ask(tier, chat("2 + 2?", max_tokens=100))
    assert (answer.reasoning, answer.text) == (THOUGHT, "4, of course.")
    assert answer.finish_reason == "stop"
    assert usage.reasoning_tokens == len(tokenizer.encode(THOUGHT))
    assert usage.completion_tokens == usage.reasoning_tokens + len(tokenizer.encode(" 4, of course."))
    await tier.close()


async def test_the_answer_continues_the_tokens_of_the_thought(tokenizer: Tokenizer) -> None:
    tier, core = await thinker(tokenizer)
    _, usage = await ask(tier, chat("2 + 2?", max_tokens=100))
    first, second = core.added
    assert second.prompt_token_ids == (
        first.prompt_token_ids + tokenizer.encode(THOUGHT) + tokenizer.encode(SPEC.answer_opening)
    )
    assert usage.prompt_tokens == len(first.prompt_token_ids) == tier.count_prompt_tokens(chat("2 + 2?"))
    assert usage.cached_tokens == 3
    await tier.close()


async def test_a_strict_deadline_holds_for_the_first_thought_and_not_for_the_answer_after_it(
    tokenizer: Tokenizer,
) -> None:
    tier, core = await thinker(tokenizer)
    await ask(tier, chat("2 + 2?", max_tokens=100, deadline=1.0, strict_deadline=True))
    assert [added.strict_deadline for added in core.added] == [True, False]
    await tier.close()


async def test_the_instruction_ends_the_last_user_turn_and_the_opening_begins_the_answer(tokenizer: Tokenizer) -> None:
    tier, core = await thinker(tokenizer)
    await ask(tier, chat("2 + 2?", max_tokens=100))
    ids = tokenizer.encode_chat([{"role": "user", "content": "2 + 2?\n\nThink first."}])
    assert core.added[0].prompt_token_ids == ids + tokenizer.encode(SPEC.opening)
    await tier.close()


@pytest.mark.parametrize(
    ("thought", "shown"),
    [
        (THOUGHT + "</think> 4", THOUGHT),
        (THOUGHT + " Final answer: 4", THOUGHT + " "),
        ("<think>\n" + THOUGHT + "</think>", THOUGHT),
        ("<thinly> veiled", "<thinly> veiled"),
        ("<", "<"),
    ],
)
async def test_markers_end_the_thought_and_are_not_shown(tokenizer: Tokenizer, thought: str, shown: str) -> None:
    tier, core = await thinker(tokenizer, thought)
    answer, _ = await ask(tier, chat(max_tokens=100))
    assert answer.reasoning == shown
    assert answer.text == "4, of course."
    assert "Final answer: 4" not in tokenizer.decode(core.added[1].prompt_token_ids)
    await tier.close()


async def test_a_marker_that_is_a_control_token_ends_the_thought(tokenizer: Tokenizer) -> None:
    spec = ChainOfThoughtSpec(budget_tokens=30, end_markers=("<file_sep>",), answer_opening="<file_sep>Final answer:")
    tier, core = await thinker(tokenizer, spec=spec)
    await ask(tier, chat(max_tokens=100))
    control = tokenizer.control_tokens["<file_sep>"]
    assert core.added[0].sampling.stop_token_ids == (control,)
    assert control in core.added[1].prompt_token_ids
    await tier.close()


async def test_an_endless_thought_ends_with_the_budget(tokenizer: Tokenizer) -> None:
    tier, _ = await thinker(tokenizer, "and so on…")
    answer, usage = await ask(tier, chat(max_tokens=100))
    assert usage.reasoning_tokens == SPEC.budget_tokens
    assert answer.text == "4, of course."
    await tier.close()


@pytest.mark.parametrize(
    ("max_tokens", "budget", "thought_tokens", "answer_tokens"),
    [
        (100, None, 30, 70),  # the tier's budget
        (100, 5, 5, 95),  # the request's
        (20, None, 12, 8),  # the answer's minimum share
        (10, None, 5, 5),  # half of little
        (2, None, 1, 1),
        (1, None, 0, 1),
        (40, 0, 0, 40),  # asked not to think
    ],
)
async def test_max_tokens_bounds_thought_and_answer_together(
    tokenizer: Tokenizer, max_tokens: int, budget: int | None, thought_tokens: int, answer_tokens: int
) -> None:
    tier, _ = await thinker(tokenizer, "and so on…", "on and on…")
    _, usage = await ask(tier, chat(max_tokens=max_tokens, reasoning_budget=budget))
    assert usage.reasoning_tokens == thought_tokens
    assert usage.completion_tokens == thought_tokens + answer_tokens
    await tier.close()


@pytest.mark.parametrize(
    ("effort", "thought_tokens"), [("none", 0), ("minimal", 4), ("low", 8), ("medium", 15), ("high", 30), ("xhigh", 30)]
)
async def test_effort_is_a_share_of_the_tiers_budget(tokenizer: Tokenizer, effort: str, thought_tokens: int) -> None:
    tier, _ = await thinker(tokenizer, "and so on…", "on and on…")
    _, usage = await ask(tier, chat(max_tokens=100, reasoning_effort=effort))
    assert usage.reasoning_tokens == thought_tokens
    await tier.close()


async def test_a_budget_of_the_requests_own_goes_before_its_effort(tokenizer: Tokenizer) -> None:
    tier, _ = await thinker(tokenizer, "and so on…")
    _, usage = await ask(tier, chat(max_tokens=100, reasoning_effort="high", reasoning_budget=5))
    assert usage.reasoning_tokens == 5
    await tier.close()


async def test_tokens_saved_by_the_thought_are_available_to_the_answer(tokenizer: Tokenizer) -> None:
    tier, _ = await thinker(tokenizer, THOUGHT, "on and on…")
    _, usage = await ask(tier, chat(max_tokens=60))
    assert usage.completion_tokens == 60
    await tier.close()


async def test_without_max_tokens_thought_and_answer_stay_in_the_context(tokenizer: Tokenizer) -> None:
    tier, core = await thinker(tokenizer, "and so on…", "on and on…")
    await ask(tier, chat(max_tokens=None))
    second = core.added[1]
    assert len(second.prompt_token_ids) + second.sampling.max_tokens == tier.max_context
    await tier.close()


async def test_stop_strings_logprobs_and_biases_are_the_answers_alone(tokenizer: Tokenizer) -> None:
    tier, core = await thinker(tokenizer, "I stop. No I go on.", " 4. I stop. More.")
    sampling = SamplingParams(temperature=0.0, logprobs=0, logit_bias={5: 1.0}, min_tokens=2, ignore_eos=True)
    answer, _ = await ask(tier, chat(max_tokens=100, stop=(" I stop",), sampling=sampling))
    assert answer.reasoning == "I stop. No I go on."
    assert answer.text == "4."
    assert b"".join(t.token_bytes for t in answer.logprobs) == b" 4."
    thought, second = (added.sampling for added in core.added)
    assert (thought.logprobs, thought.logit_bias, thought.min_tokens, thought.ignore_eos) == (None, {}, 0, False)
    assert (second.logprobs, second.logit_bias, second.min_tokens, second.ignore_eos) == (0, {5: 1.0}, 2, True)
    await tier.close()


async def test_choices_think_for_themselves_and_the_prompt_is_billed_once(tokenizer: Tokenizer) -> None:
    tier, core = await thinker(tokenizer)
    request = chat(max_tokens=100, n=3, sampling=SamplingParams(temperature=1.0, seed=7))
    answers, usage = await collect(tier, request)
    assert [(a.reasoning, a.text) for a in answers] == [(THOUGHT, "4, of course.")] * 3
    assert usage.reasoning_tokens == 3 * len(tokenizer.encode(THOUGHT))
    assert usage.prompt_tokens == tier.count_prompt_tokens(request)
    seeds = [added.sampling.seed for added in core.added]
    assert len(set(seeds)) == 6
    again, core_again = await thinker(tokenizer)
    await collect(again, request)
    assert sorted(s for s in seeds if s is not None) == sorted(a.sampling.seed or 0 for a in core_again.added)
    await tier.close()
    await again.close()


async def test_a_raw_prompt_is_continued_without_a_thought(tokenizer: Tokenizer) -> None:
    tier, core = await thinker(tokenizer)
    request = GenerationRequest(request_id="r", sampling=GREEDY, prompt="Once upon", max_tokens=20)
    _, usage = await ask(tier, request)
    assert usage.reasoning_tokens == 0
    assert core.added[0].prompt_token_ids == tokenizer.encode("Once upon")
    await tier.close()


async def test_a_prompt_that_leaves_no_room_is_refused(tokenizer: Tokenizer) -> None:
    tier, core = await thinker(tokenizer)
    with pytest.raises(TierRequestError) as error:
        await ask(tier, chat("word " * 500))
    assert error.value.code == "context_length_exceeded"
    assert not core.added
    await tier.close()


@pytest.mark.parametrize("phase", ["thought", "answer"])
@pytest.mark.parametrize("n", [1, 3])
async def test_closing_early_leaves_nothing_in_the_core(tokenizer: Tokenizer, phase: str, n: int) -> None:
    tier, core = await thinker(tokenizer, THOUGHT, "on and on…")
    async with aclosing(tier.generate(chat(max_tokens=100, n=n))) as deltas:
        async for delta in deltas:
            if delta.reasoning if phase == "thought" else delta.text:
                break
        assert core.live
    assert not core.live
    await tier.close()


async def test_cancelling_while_the_core_is_silent_leaves_nothing_in_it(tokenizer: Tokenizer) -> None:
    tier, core = await started(tokenizer, lambda add: [THOUGHT] * add.n, hold=2)
    task = asyncio.create_task(collect(tier, chat(max_tokens=100, n=2)))
    await core.held.wait()
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert not core.live
    await tier.close()
