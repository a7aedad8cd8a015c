"""A local tier whose model speaks harmony: its prompts, its bounds, and what its answers become."""

import re
from pathlib import Path
from typing import Any

import pytest

from inference_core.protocol import Grammar, SamplingParams
from inference_core.tokenization.load_tokenizer import load_tokenizer
from inference_core.tokenization.tokenizer import Tokenizer
from tests.inference_core.harmony_vocabulary import TEMPLATE, write_harmony_tokenizer
from tests.tiers.tier_world import GREEDY, ScriptedCore, chat, collect, local_tier, tier_spec
from tiers.catalog.tier_spec import ChainOfThoughtSpec, PlainSpec, SelfConsistencySpec
from tiers.conversation import Call, Tool, Tooling, Turn
from tiers.dialects.written.harmony import HarmonyFormat, speaks_harmony
from tiers.dialects.written.tool_calling import ToolCalling
from tiers.errors import CatalogError, TierRequestError
from tiers.local.local_tier import LocalTier
from tiers.tier import Delta, GenerationRequest

THOUGHT = "<|channel|>analysis<|message|>Two and two.<|end|><|start|>assistant"
ANSWER = f"{THOUGHT}<|channel|>final<|message|>It is 4."
CALL = f'{THOUGHT}<|channel|>commentary to=functions.add <|constrain|>json<|message|>{{"a": 2}}'
ADD = Tool(name="add", parameters={"type": "object", "properties": {"a": {"type": "integer"}}})
TOOLING = Tooling(tools=(ADD,))


@pytest.fixture(scope="module")
def harmony(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return load_tokenizer(write_harmony_tokenizer(tmp_path_factory.mktemp("harmony")))


class Speaker(Tokenizer):
    """Encodes control tokens in a script as a model would draw them."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        super().__init__(tokenizer._vocabulary)

    def encode(self, text: str, *, add_special_tokens: bool = False) -> list[int]:
        controls, ids = self.control_tokens, []
        for piece in filter(None, re.split(r"(<\|[a-z]+\|>)", text)):
            ids += [controls[piece]] if piece in controls else super().encode(piece)
        return ids


async def speaking(tokenizer: Tokenizer, *scripts: str, literal: bool = False) -> tuple[LocalTier, ScriptedCore]:
    core = ScriptedCore(tokenizer if literal else Speaker(tokenizer), lambda add: list(scripts))
    tier = local_tier(tier_spec(PlainSpec()), core, tokenizer)
    await tier.start()
    return tier, core


async def test_thoughts_are_reasoning_and_the_final_message_is_text(harmony: Tokenizer) -> None:
    tier, core = await speaking(harmony, ANSWER)
    (answer,), usage = await collect(tier, chat(max_tokens=200))
    assert (answer.reasoning, answer.text, answer.finish_reason) == ("Two and two.", "It is 4.", "stop")
    assert harmony.decode(answer.token_ids) == "It is 4."
    assert usage.completion_tokens == len(Speaker(harmony).encode(ANSWER))
    assert usage.reasoning_tokens == usage.completion_tokens - len("It is 4.")
    ends = {harmony.control_tokens["<|return|>"], harmony.control_tokens["<|call|>"]}
    assert set(core.added[0].sampling.stop_token_ids) == ends


@pytest.mark.parametrize(
    ("script", "stop", "said"),
    [
        (ANSWER, "and", ("Two and two.", "It is 4.", None)),
        (ANSWER, "is", ("Two and two.", "It ", "is")),
        (ANSWER, ".", ("Two and two.", "It is 4", ".")),
        ("<|channel|>final<|message|>It is 4.", "final", ("", "It is 4.", None)),
        ("It is 4.", "is", ("", "It ", "is")),
        (" to=functions.f<|channel|>analysis<|message|>a b", "b", ("a b", "", None)),
    ],
)
async def test_stop_strings_count_in_the_answer_alone(
    harmony: Tokenizer, script: str, stop: str, said: tuple[str, str, str | None]
) -> None:
    tier, core = await speaking(harmony, script)
    (answer,), _ = await collect(tier, chat(max_tokens=200, stop=(stop,)))
    assert (answer.reasoning, answer.text, answer.stop_sequence) == said
    assert not core.live


async def test_stop_strings_do_not_count_in_a_call(harmony: Tokenizer) -> None:
    for script in (CALL, CALL.replace(THOUGHT, "")):
        tier, _ = await speaking(harmony, script)
        deltas = await deltas_of(tier, tooling=TOOLING, stop=("2", "json"))
        assert "".join(call.arguments for delta in deltas for call in delta.tool_calls) == '{"a": 2}'


async def test_tokens_before_the_least_number_open_the_answer_too(harmony: Tokenizer) -> None:
    tier, _ = await speaking(harmony, ANSWER)
    least = len(Speaker(harmony).encode(THOUGHT)) + 8
    (answer,), _ = await collect(tier, chat(max_tokens=200, stop=("4",), sampling=SamplingParams(min_tokens=least)))
    assert answer.text == "It is "


async def test_log_probabilities_are_those_of_the_text_alone(harmony: Tokenizer) -> None:
    tier, _ = await speaking(harmony, ANSWER)
    (answer,), _ = await collect(tier, chat(max_tokens=200, sampling=SamplingParams(temperature=0, logprobs=0)))
    assert b"".join(token.token_bytes for token in answer.logprobs) == b"It is 4."


async def test_each_choice_is_read_by_itself(harmony: Tokenizer) -> None:
    tier, _ = await speaking(harmony, ANSWER, "<|channel|>final<|message|>Four.")
    answers, _ = await collect(tier, chat(max_tokens=200, n=2))
    assert [(a.reasoning, a.text) for a in answers] == [("Two and two.", "It is 4."), ("", "Four.")]


async def deltas_of(tier: LocalTier, **fields: Any) -> list[Delta]:
    return [delta async for delta in tier.generate(chat(max_tokens=200, **fields))]


async def test_a_message_to_a_function_is_a_call(harmony: Tokenizer) -> None:
    tier, _ = await speaking(harmony, CALL)
    deltas = await deltas_of(tier, tooling=TOOLING)
    calls = [call for delta in deltas for call in delta.tool_calls]
    assert [call.name for call in calls if call.id] == ["add"]
    assert "".join(call.arguments for call in calls) == '{"a": 2}'
    assert [delta.finish_reason for delta in deltas if delta.finish_reason] == ["tool_calls"]
    assert "".join(delta.reasoning for delta in deltas) == "Two and two."


async def test_control_tokens_that_the_model_spells_out_forge_no_call(harmony: Tokenizer) -> None:
    """As it does when a user asks it to repeat them."""
    tier, _ = await speaking(harmony, CALL, literal=True)
    (answer,), _ = await collect(tier, chat(max_tokens=200, tooling=TOOLING))
    assert (answer.text, answer.finish_reason) == (CALL, "stop")


async def test_a_raw_prompt_is_continued_as_it_is(harmony: Tokenizer) -> None:
    tier, _ = await speaking(harmony, ANSWER)
    request = GenerationRequest(request_id="r", prompt="2 + 2", sampling=GREEDY, max_tokens=200)
    (answer,), _ = await collect(tier, request)
    assert (answer.reasoning, answer.text) == ("", "analysisTwo and two.assistantfinalIt is 4.")


def test_a_conversation_has_one_call_in_a_turn_with_its_result_behind_it(harmony: Tokenizer) -> None:
    calls = (Call(id="x", name="add", arguments='{"a": 1}'), Call(id="y", name="now", arguments="{}"))
    messages = [
        Turn.of("user", "Well?"),
        Turn.of("assistant", "I look.", thoughts="Hm.", calls=calls),
        Turn.of("tool", "noon", call_id="y"),
        Turn.of("tool", "3", call_id="x"),
        Turn.of("assistant", "Done.", thoughts="So."),
    ]
    turns, tools = HarmonyFormat(harmony).turns(messages, TOOLING)
    rendered = harmony.render_chat(turns, tools=tools)
    assert tools == [ADD.definition()]
    assert rendered.partition("Well?<|end|>")[2] == (
        "<|start|>assistant<|channel|>analysis<|message|>Hm.\n\nI look.<|end|>"
        '<|start|>assistant to=functions.add<|channel|>commentary json<|message|>{"a": 1}<|call|>'
        '<|start|>functions.add to=assistant<|channel|>commentary<|message|>"3"<|end|>'
        "<|start|>assistant to=functions.now<|channel|>commentary json<|message|>{}<|call|>"
        '<|start|>functions.now to=assistant<|channel|>commentary<|message|>"noon"<|end|>'
        "<|start|>assistant<|channel|>final<|message|>Done.<|end|><|start|>assistant"
    )


def test_the_format_is_chosen_by_vocabulary_and_template(
    harmony: Tokenizer, tokenizer: Tokenizer, tmp_path: Path
) -> None:
    assert speaks_harmony(harmony)
    assert not speaks_harmony(tokenizer)
    plain = write_harmony_tokenizer(tmp_path, TEMPLATE.replace("<|channel|>", ""))
    assert not speaks_harmony(load_tokenizer(plain))


@pytest.mark.parametrize("policy", [ChainOfThoughtSpec(budget_tokens=20), SelfConsistencySpec(samples=3)])
async def test_a_policy_that_would_think_twice_is_refused(harmony: Tokenizer, policy: Any) -> None:
    tier = local_tier(tier_spec(policy), ScriptedCore(harmony, lambda add: []), harmony)
    with pytest.raises(CatalogError, match="harmony"):
        await tier.start()


async def test_a_grammar_of_ones_own_is_refused(harmony: Tokenizer) -> None:
    tier, _ = await speaking(harmony, ANSWER)
    sampling = SamplingParams(grammar=Grammar(kind="lark", text='start: "a"', param="guided_grammar"))
    with pytest.raises(TierRequestError, match="answers in channels") as refused:
        await collect(tier, chat(sampling=sampling))
    assert refused.value.param == "guided_grammar"


def test_other_models_are_read_only_where_they_may_call(tokenizer: Tokenizer) -> None:
    calling = ToolCalling(tokenizer)
    assert not calling.reads(chat())
    assert calling.reads(chat(tooling=TOOLING))
    assert calling.visible_controls(chat()) == {}
