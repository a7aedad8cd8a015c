"""A small gpt-oss in MXFP4, taught two answers in harmony's format, served over HTTP by `aio serve` on the CPU."""

import json
import re
from pathlib import Path
from typing import Any

import jsonschema
import openai
import pytest
import torch

from inference_core.tokenization.load_tokenizer import load_tokenizer
from inference_core.tokenization.tokenizer import Tokenizer
from tests.inference_core.gpt_oss_models import config, random_model, save_in_mxfp4
from tests.inference_core.harmony_vocabulary import SIZE, write_harmony_tokenizer
from tests.support.served import Serve, ServedProcess

pytestmark = pytest.mark.processes

MESSAGES: Any = [{"role": "user", "content": "What is 2 + 2?"}]
SUM: Any = {"type": "object", "properties": {"a": {"type": "integer", "minimum": 1, "maximum": 9}}, "required": ["a"]}
TOOLS: Any = [{"type": "function", "function": {"name": "add", "parameters": SUM}}]
SCHEMA: Any = {
    "type": "object",
    "properties": {"sum": {"enum": [4, 5]}},
    "required": ["sum"],
    "additionalProperties": False,
}
THOUGHT = "<|channel|>analysis<|message|>Two and two.<|end|><|start|>assistant"
ANSWER = f"{THOUGHT}<|channel|>final<|message|>It is 4.<|return|>"
CALL = f'{THOUGHT}<|channel|>commentary to=functions.add <|constrain|>json<|message|>{{"a": 2}}<|call|>'


def drawn(tokenizer: Tokenizer, transcript: str) -> list[int]:
    """A transcript as the model draws it."""
    ids: list[int] = []
    for piece in filter(None, re.split(r"(<\|[a-z]+\|>)", transcript)):
        control = tokenizer.control_tokens.get(piece)
        ids += tokenizer.encode(piece) if control is None else [control]
    return ids


class Taught:
    """The model as transformers computes it, and its folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.tokenizer = load_tokenizer(write_harmony_tokenizer(folder))
        end = self.tokenizer.control_tokens["<|return|>"]
        self.model = random_model(config(vocab_size=SIZE, max_position_embeddings=512, eos_token_id=end))
        self.prompts = [self.tokenizer.encode_chat(MESSAGES, tools=tools) for tools in (None, TOOLS)]
        self._teach([drawn(self.tokenizer, transcript) for transcript in (ANSWER, CALL)])
        save_in_mxfp4(self.model, folder)

    def greedy(self, prompt: list[int], count: int) -> list[int]:
        tokens = list(prompt)
        with torch.no_grad():
            for _ in range(count):
                tokens.append(int(self.model(torch.tensor([tokens])).logits[0, -1].argmax()))
        return tokens[len(prompt) :]

    def _teach(self, answers: list[list[int]]) -> None:
        """Until it gives them; its experts stay the numbers that MXFP4 has, all else becomes bfloat16's."""
        named = self.model.named_parameters()
        learned = [parameter for name, parameter in named if "experts" not in name]
        descent = torch.optim.Adam(learned, lr=5e-3)
        for _ in range(80):
            descent.zero_grad()
            for prompt, answer in zip(self.prompts, answers, strict=True):
                logits = self.model(torch.tensor([prompt + answer])).logits[0, len(prompt) - 1 : -1]
                torch.nn.functional.cross_entropy(logits, torch.tensor(answer)).backward()
            descent.step()
        with torch.no_grad():
            for parameter in learned:
                parameter.copy_(parameter.bfloat16())


@pytest.fixture(scope="module")
def taught(tmp_path_factory: pytest.TempPathFactory) -> Taught:
    return Taught(tmp_path_factory.mktemp("gpt-oss"))


@pytest.fixture(scope="module")
def aio(taught: Taught, tmp_path_factory: pytest.TempPathFactory, module_served: Serve) -> ServedProcess:
    folder = tmp_path_factory.mktemp("served")
    price = "price = { input_usd_per_million = 1, output_usd_per_million = 1 }"
    lines = [
        "[core]", "arena_bytes = 33_554_432", "slab_bytes = 1_048_576", "[[core.models]]", 'name = "m"',
        f'path = "{taught.folder}"', 'compute = "float32"', 'kv_dtype = "float32"',
        "[[tiers]]", 'name = "first"', 'model = "m"', price, "[[tiers]]", 'name = "second"', 'model = "m"',
        "price = { input_usd_per_million = 2, output_usd_per_million = 2 }",
        "[unmeasured]", '"m" = "it knows two answers"',
    ]  # fmt: skip
    (folder / "catalogue.toml").write_text("\n".join(lines))
    return module_served("--catalog", str(folder / "catalogue.toml"), data=folder / "data")


def chat(aio: ServedProcess, **fields: Any) -> Any:
    return aio.client.chat.completions.create(
        **{"model": "first", "messages": MESSAGES, "temperature": 0, "max_tokens": 120} | fields
    )


def test_greedy_tokens_are_those_of_transformers(aio: ServedProcess, taught: Taught) -> None:
    """Of a prompt that it was not taught, so that nothing is learned by heart."""
    prompt = taught.tokenizer.encode("Once upon a time there were seven little bytes")
    answer = aio.client.completions.create(
        model="first", prompt=[prompt], temperature=0, max_tokens=40, extra_body={"ignore_eos": True, "logprobs": 0}
    )
    expected = taught.greedy(prompt, 40)
    assert len(set(expected)) > 4, "an answer that hardly varies shows little"
    assert answer.choices[0].text == taught.tokenizer.decode(expected)


def test_a_streamed_chat_gives_thoughts_and_then_the_answer(aio: ServedProcess, taught: Taught) -> None:
    assert taught.greedy(taught.prompts[0], 60)[: len(drawn(taught.tokenizer, ANSWER))] == drawn(
        taught.tokenizer, ANSWER
    )
    reasoning, text, kinds, reasons = "", "", [], []
    for chunk in chat(aio, stream=True):
        for choice in chunk.choices:
            said = getattr(choice.delta, "reasoning_content", None) or getattr(choice.delta, "reasoning", None)
            reasoning, text = reasoning + (said or ""), text + (choice.delta.content or "")
            kinds += ["thought"] * bool(said) + ["text"] * bool(choice.delta.content)
            reasons += [choice.finish_reason] * bool(choice.finish_reason)
    assert (reasoning, text, reasons) == ("Two and two.", "It is 4.", ["stop"])
    assert kinds == sorted(kinds, reverse=True), "thoughts come first"
    assert kinds.count("text") > 1


def test_a_whole_answer_counts_its_thoughts(aio: ServedProcess, taught: Taught) -> None:
    answer = chat(aio, logprobs=True)
    (choice,) = answer.choices
    assert (choice.message.content, choice.finish_reason) == ("It is 4.", "stop")
    assert choice.message.reasoning_content == "Two and two."
    assert b"".join(bytes(one.bytes) for one in choice.logprobs.content) == b"It is 4."
    details = answer.usage.completion_tokens_details
    assert answer.usage.completion_tokens - details.reasoning_tokens == len("It is 4.")


def test_a_tool_is_called_and_its_result_read(aio: ServedProcess) -> None:
    (choice,) = chat(aio, tools=TOOLS).choices
    (call,) = choice.message.tool_calls
    assert (choice.finish_reason, call.function.name, json.loads(call.function.arguments)) == (
        "tool_calls",
        "add",
        {"a": 2},
    )
    turn = {"role": "assistant", "content": None, "tool_calls": [call.model_dump()]}
    result = {"role": "tool", "tool_call_id": call.id, "content": "4"}
    after = chat(aio, tools=TOOLS, messages=[*MESSAGES, turn, result])
    assert after.usage.prompt_tokens > 0


def test_tokens_of_a_chat_are_counted_as_it_is_read(aio: ServedProcess) -> None:
    call = {"id": "c", "type": "function", "function": {"name": "add", "arguments": '{"a": 2}'}}
    said = {"role": "assistant", "content": "I add.", "reasoning_content": "Two.", "tool_calls": [call]}
    messages = [*MESSAGES, said, {"role": "tool", "tool_call_id": "c", "content": "4"}]
    counted: Any = aio.client.post("/tokenize", body={"model": "first", "messages": messages}, cast_to=object)

    assert counted["count"] == chat(aio, messages=messages, max_tokens=1).usage.prompt_tokens


@pytest.mark.parametrize("fields", [{}, {"reasoning_effort": "none"}])
def test_a_structured_answer_keeps_its_schema(aio: ServedProcess, fields: dict[str, str]) -> None:
    form = {"type": "json_schema", "json_schema": {"name": "sum", "schema": SCHEMA, "strict": True}}
    (choice,) = chat(aio, response_format=form, **fields).choices
    assert choice.finish_reason == "stop"
    jsonschema.validate(json.loads(choice.message.content), SCHEMA)
    assert bool(getattr(choice.message, "reasoning_content", None)) == (not fields)


def test_a_forced_call_keeps_the_tools_schema(aio: ServedProcess) -> None:
    (choice,) = chat(aio, tools=TOOLS, tool_choice="required").choices
    assert choice.finish_reason == "tool_calls"
    jsonschema.validate(json.loads(choice.message.tool_calls[0].function.arguments), SUM)


def test_a_grammar_of_ones_own_is_refused_with_its_field(aio: ServedProcess) -> None:
    with pytest.raises(openai.BadRequestError, match="answers in channels"):
        chat(aio, extra_body={"structured_outputs": {"grammar": 'start: "a"'}})
