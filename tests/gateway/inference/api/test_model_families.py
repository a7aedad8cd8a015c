"""Models of many families, served over HTTP by `aio serve` on the CPU: streamed, structured, and as transformers."""

import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from transformers.convert_slow_tokenizer import bytes_to_unicode

from tests.gateway.inference.api.model_families import FAMILIES, TOKENS, catalogue, greedy
from tests.support.served import ServedProcess, served

pytestmark = pytest.mark.processes

# A catalogue has at most eight tiers.
AT_ONCE = 8
COUNT = 24
MESSAGES: Any = [
    {"role": "system", "content": "Answer with what you know of the weather."},
    {"role": "user", "content": "What was the weather in Lima, and with the other cities?"},
]
SCHEMA = {
    "type": "object",
    "properties": {
        "city": {"enum": ["Lima", "Rome", "Oslo"]},
        "days": {"type": "integer", "minimum": 1, "maximum": 7},
        "rain": {"type": "boolean"},
    },
    "required": ["city", "days", "rain"],
    "additionalProperties": False,
}


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Writes a family's model at its first use."""
    folder, written = tmp_path_factory.mktemp("families"), {}

    def file(name: str) -> Path:
        if name not in written:
            written[name] = FAMILIES[name].write(folder / name)
        path: Path = written[name]
        return path

    return file


@pytest.fixture(scope="module")
def serving(
    files: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[[str], ServedProcess]]:
    """Starts a server of a family and its neighbours at its first use."""
    started: dict[int, ServedProcess] = {}
    with ExitStack() as stack:

        def serve(name: str) -> ServedProcess:
            number = list(FAMILIES).index(name) // AT_ONCE
            if number not in started:
                names = list(FAMILIES)[number * AT_ONCE : (number + 1) * AT_ONCE]
                folder = tmp_path_factory.mktemp("served")
                (folder / "catalogue.toml").write_text(catalogue({each: files(each) for each in names}))
                aio = stack.enter_context(
                    served(folder / "data", folder / "cache", "--catalog", str(folder / "catalogue.toml"))
                )
                aio.until_whole()
                started[number] = aio
            return started[number]

        yield serve


@pytest.mark.parametrize("name", FAMILIES)
def test_a_streamed_chat_has_the_tokens_that_transformers_chooses(
    name: str, serving: Callable[[str], ServedProcess], files: Callable[[str], Path]
) -> None:
    stream = serving(name).client.chat.completions.create(
        model=name, messages=MESSAGES, temperature=0, max_tokens=COUNT, logprobs=True, stream=True
    )
    drawn: list[bytes] = []
    pieces, text = 0, ""
    for chunk in stream:
        for choice in chunk.choices:
            if choice.logprobs is not None:
                drawn += [bytes(token.bytes or ()) for token in choice.logprobs.content or ()]
            pieces += bool(choice.delta.content)
            text += choice.delta.content or ""
    expected = greedy(FAMILIES[name], files(name), MESSAGES, COUNT)
    assert len(set(expected)) > 4, "an answer that hardly varies shows little"
    assert drawn == [of_bytes(token) for token in expected]
    assert pieces > 1
    assert text == b"".join(drawn).decode("utf-8", "replace")


@pytest.mark.parametrize("name", FAMILIES)
def test_a_structured_answer_keeps_its_schema(name: str, serving: Callable[[str], ServedProcess]) -> None:
    answer = serving(name).client.chat.completions.create(
        model=name,
        messages=MESSAGES,
        max_tokens=120,
        seed=5,
        response_format={"type": "json_schema", "json_schema": {"name": "weather", "schema": SCHEMA, "strict": True}},
    )
    (choice,) = answer.choices
    assert choice.finish_reason == "stop"
    jsonschema.validate(json.loads(choice.message.content or ""), SCHEMA)


def of_bytes(token: int) -> bytes:
    """The bytes of a token, each of which the vocabulary writes as a character."""
    byte_of = {character: byte for byte, character in bytes_to_unicode().items()}
    return bytes(byte_of[character] for character in TOKENS[token])
