"""What a refusal repeats of the request is none of the server's words, however it repeats it; its own words stay."""

import html
import json
from collections.abc import Callable
from typing import Any
from urllib.parse import quote_plus

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from tests.examples import examples
from tiers.dialects.echoes import own_words
from tiers.dialects.refusals import TooLong, meanings_in, told_limit, told_tools, too_long
from tiers.dialects.server_error import ErrorObject

WORDS = [
    "max_tokens: 9 > 1, which is the maximum allowed number of output tokens",
    "Your credit balance is too low. Insufficient balance. Please recharge.",
    "Rate limit reached: \"Too many requests\".\n\tPlease 'try again' in 3600s — naïve 😀",
    "余额不足，请充值",
    "throttled",
]
FORMS: dict[str, Callable[[str], str]] = {
    "repr": repr,
    "json": json.dumps,
    "json, not ascii": lambda text: json.dumps(text, ensure_ascii=False),
    "json in json": lambda text: json.dumps(json.dumps({"content": text})),
    "backticks": lambda text: f"`{text}`",
    "html": lambda text: f"<b>{html.escape(text)}</b>",
    "upper case": lambda text: f"'{text.upper()}'",
    "one line": lambda text: f"({' '.join(text.split())})",
    "cut, in quotes": lambda text: f"'{text[: max(6, len(text) * 2 // 3)]}...",
    "cut, an ellipsis": lambda text: f'"{text[: max(6, len(text) // 2)]}…"',
    "the end": lambda text: f"'…{text[-max(6, len(text) // 2) :]}'",
    "cut in the middle": lambda text: f"'{text[: max(4, len(text) // 3)]}...{text[-max(4, len(text) // 3) :]}'",
    "bytes": lambda text: repr(text.encode()),
    "as a query": lambda text: f"'{quote_plus(text)}'",
    "other characters as question marks": lambda text: f"'{text.encode('ascii', 'replace').decode()}'",
    "UTF-8 as Latin-1": lambda text: f"'{text.encode().decode('latin-1')}'",
    "a part": lambda text: f"'{text[len(text) // 4 :]}'" if " " in text else f"'{text}'",
}


def body(**fields: Any) -> bytes:
    return json.dumps({"model": "m"} | fields).encode()


def said(content: str) -> bytes:
    return body(messages=[{"role": "user", "content": content}])


PLACES: dict[str, Callable[[str], bytes]] = {
    "a message": said,
    "a stop string": lambda text: body(messages=[], stop=[text]),
    "a field of metadata": lambda text: body(metadata={"a": text}),
    "a name in metadata": lambda text: body(metadata={text: "a"}),
    "a property of a tool": lambda text: body(tools=[{"function": {"parameters": {"properties": {text: {}}}}}]),
    "arguments of a call": lambda text: body(messages=[{"tool_calls": [{"function": {"arguments": text}}]}]),
    "JSON in a text": lambda text: said(json.dumps({"q": [text]})),
    "a line of a text": lambda text: said(f"Before it.\n{text}\nBehind it, some more words."),
    "a form": lambda text: f"--x\r\nContent-Disposition: form-data\r\n\r\n{' '.join(text.split())}\r\n--x--".encode(),
}
MEANINGS = ("maximum", "credit", "balance", "rate", "too many", "again", "余额", "充值", "throttl")


@pytest.mark.parametrize("text", WORDS)
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("location", PLACES)
def test_an_echo_in_any_form_leaves_none_of_its_words(text: str, form: str, location: str) -> None:
    message = f"1 validation error for x: Value error [type=value_error, input_value={FORMS[form](text)}, is bad]"
    left = own_words(message, PLACES[location](text))
    assert left.startswith("1 validation error for x: Value error [type=value_error, input_value=")
    assert left.endswith("is bad]")
    assert not [word for word in MEANINGS if word in left.lower()]


@pytest.mark.parametrize("text", [text for text in WORDS if " " in text])
def test_an_echo_without_quotes_is_known_by_where_it_begins_or_ends(text: str) -> None:
    for repeated in (text, text[: len(text) - 9], text[9:]):
        left = own_words(f"Unable to read {repeated} as a text.", said(text))
        assert not [word for word in MEANINGS if word in left.lower()], repeated


# Forms without quotes, of Go, Java, templates, YAML and sentences.
BARE_FORMS = [
    "invalid value [map[content:{} role:user]] in messages",
    "invalid message {{Role:user Content:{} ToolCalls:[]}}",
    "Invalid message ChatMessage(role=user, content={}, name=null)",
    "[INST] {} [/INST] could not be parsed",
    "Failed to render: <|im_start|>user\n{}<|im_end|>\n",
    "could not parse:\n  role: user\n  content: {}\n",
    "Parse error:\n{}\n^\nExpected EOF",
    "{} is not a valid value",
    "参数错误：{}，请检查",
]
BARE_TEXTS = [
    "prompt is too long",
    "Rate limit reached",
    "insufficient_balance",
    "throttled",
    "at most 2 tools",
    "try again in 250 seconds",
    "C:\\new\\insufficient credits\\here",
    "输入内容过长，超过限制",
]


def meanings(message: str) -> set[str]:
    return {what for what, _ in meanings_in(message)}


@pytest.mark.parametrize("text", BARE_TEXTS)
@pytest.mark.parametrize("form", BARE_FORMS)
@pytest.mark.parametrize("location", ["a message", "JSON in a text", "a line of a text"])
def test_an_echo_without_quotes_that_means_something_is_none_of_the_servers_words(
    text: str, form: str, location: str
) -> None:
    assert meanings(text)
    assert meanings(own_words(form.format(text), PLACES[location](text))) == meanings(form.format("x"))


WITH_COUNTS = [
    "prompt is too long: 200123 tokens > 199999 maximum",
    "max_tokens: 9000 > 500, which is the maximum allowed number of output tokens",
    "This model's maximum context length is 8192 tokens. However, your messages resulted in 9000 tokens.",
    "max_tokens is too large: 65536. This model supports at most 16384 completion tokens, whereas you provided 65536.",
    "request (9000 tokens) exceeds the available context size (8192 tokens), try increasing it",
    "Invalid 'tools': array too long. Expected an array with maximum length 128, but got an array with length 150.",
    "The input token count (200000) exceeds the maximum number of tokens allowed (131072).",
]


def read_of(message: str, request: bytes | None = None) -> tuple[TooLong | None, int, int]:
    words = own_words(message, request)
    return too_long(ErrorObject(message, own=words)), told_limit(words), told_tools(words)


@pytest.mark.parametrize("message", WITH_COUNTS)
def test_no_short_turn_or_line_hides_what_a_server_says_with_counts(message: str) -> None:
    words, meant = message.split(), read_of(message)
    assert any(meant)
    runs = {" ".join(words[start : start + size]) for size in (1, 2, 3, 4) for start in range(len(words))}
    for run in runs:
        for request in (said(run), said(f"A question.\n{run}\nWell?"), said(f"Now {run} and so on")):
            if not any(map(str.isdigit, run)):
                assert read_of(message, request) == meant, run


@pytest.mark.parametrize(
    "message",
    [
        "`temperature` is deprecated for this model.",
        "max_tokens: 9000 > 500, which is the maximum allowed number of output tokens",
        "prompt is too long: 200123 tokens > 199999 maximum",
        "This model's maximum context length is 8192 tokens. However, you requested 9000 tokens.",
        "Unknown parameter: 'metadata'.",
        "Your credit balance is too low to access the API.",
        "tools.0.custom.strict: Extra inputs are not permitted",
        "Unsupported JSON schema fields: {'exclusiveMinimum'}",
        "Invalid 'tools[0].function.parameters': schema must have type 'object'",
        'level "max" not supported, valid levels: low, medium, high',
    ],
)
def test_what_the_server_says_itself_stays(message: str) -> None:
    """Also with prompts that have the same words in them, alone or among others, and with short texts."""
    talk = "What is the temperature in Oslo? The prompt is too long for me, your balance is low. " * 40
    asked = body(
        messages=[
            {"role": "user", "content": talk},
            {"role": "user", "content": "a"},
            {"role": "user", "content": "is"},
        ],
        stop=["a", "n", "e", "\n"],
        max_tokens=9000,
        reasoning_effort="max",
        metadata={"temperature": "max", "user": "1"},
        tools=[
            {
                "type": "function",
                "function": {
                    "name": "get_weather",
                    "strict": True,
                    "parameters": {
                        "type": "object",
                        "properties": {"temperature": {"exclusiveMinimum": 0}, "exclusiveMinimum": {"type": "string"}},
                    },
                },
            }
        ],
    )
    assert own_words(message, asked) == message
    assert own_words(message, None) == message


@pytest.mark.parametrize(
    "echo",
    [
        "{'max_tokens': 900, 'stop_token_ids': [1, 5]}",
        '{"max_tokens":900,"stop_token_ids":[1,5]}',
        "ChatRequest(max_tokens=900, stop_token_ids=[1, 5])",
        "[1, 5]",
    ],
)
def test_numbers_of_the_request_are_an_echo_where_they_stand_in_it(echo: str) -> None:
    left = own_words(f"max_tokens or so: bad input={echo} is not taken", body(max_tokens=900, stop_token_ids=[1, 5]))
    assert "5" not in left
    assert left.startswith("max_tokens or so: bad input=")


@settings(max_examples=examples(300), deadline=None)
@given(text=st.text(min_size=17, max_size=300), data=st.data())
def test_any_text_in_quotes_is_found(text: str, data: st.DataObject) -> None:
    """Whatever characters it has: what is left has none of its longer pieces. Names of the APIs stay."""
    assume(not (text.isascii() and text.isidentifier()))
    form = data.draw(st.sampled_from([repr, json.dumps]))
    left = own_words(f"bad input={form(text)}, sorry", said(text))
    inner = left.removeprefix("bad input=").removesuffix(", sorry")
    assert sum(char.isalnum() for char in inner) < 16
