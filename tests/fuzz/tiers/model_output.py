"""What a model writes: tool calls, thoughts, stop strings and final answers; callers' prompts steer all of it."""

from inference_core.tokenization.tokenizer import StopStrings
from tests.fuzz.pieces import pieces_of, random_of
from tests.hostile.target import fuzz_target
from tiers.dialects.written.call_dialects import DIALECTS
from tiers.dialects.written.call_parser import CallParser
from tiers.final_answer.extract import agreement
from tiers.final_answer.quantities import likely_number
from tiers.final_answer.short_answers import options, yes_or_no
from tiers.local.chain_of_thought import _ThoughtText
from tiers.local.self_consistency import answer_kind, extract_answer

_CALL = '{"name": "f", "arguments": {"a": "é\\n", "b": [1, {}]}}'
_ANSWERS = [
    f"Hello <tool_call>\n{_CALL}\n</tool_call>\n<tool_call>\n{_CALL}\n</tool_call>",
    f"[TOOL_CALLS][{_CALL}, {_CALL}]",
    f"<|python_tag|>{_CALL}; {_CALL}",
    '{"parameters": "{\\"a\\": 1}", "name": "f"}',
    f"<think>\nLet me see.</think> {_CALL} the rest",
]
_WORDS = [
    *(
        b"<tool_call>",
        b"</tool_call>",
        b"[TOOL_CALLS]",
        b"<|python_tag|>",
        b'"name"',
        b'"arguments"',
        b'"parameters"',
        b'"f"',
    ),
    b'{"',
    b"}",
    b"[",
    b"]",
    b'\\"',
    b"null",
    b": ",
    b"; ",
    b"\\u00e9",
    b"\n",
]


def _read(name: str, pieces: list[str], most: int | None) -> tuple[str, list[tuple[str, str]]]:
    """Return the text, and name and arguments of each call."""
    parser, text, calls = CallParser(DIALECTS[name], {"f", "g"}, most), "", list[list[str]]()
    for said in (*map(parser.feed, pieces), parser.finish()):
        text += said.text
        for call in said.calls:
            if call.name:
                assert call.index == len(calls)
                calls.append([call.name, ""])
            calls[call.index][1] += call.arguments
    assert most is None or len(calls) <= most
    return text, [(called, arguments) for called, arguments in calls]


@fuzz_target([text.encode() for text in _ANSWERS], _WORDS)
def tool_calls(data: bytes) -> str:
    """Calls of known tools, numbered in order; however the answer is cut, the same ones."""
    text = data.decode(errors="replace")
    pieces = [piece.decode("utf-32-le") for piece in _characters(text)]
    random = random_of(data)
    name, most = random.choice(list(DIALECTS)), random.choice((None, None, 1))
    whole, cut = _read(name, [text], most), _read(name, pieces, most)
    assert whole == cut
    assert all(called in ("f", "g") for called, _ in whole[1])
    return f"{name} {min(len(whole[1]), 3)}"


def _characters(text: str) -> list[bytes]:
    """Cut a text between its characters."""
    data = text.encode("utf-32-le")
    found, at = [], 0
    for piece in pieces_of(data):
        end = min(len(data), at + max(4, len(piece) // 4 * 4))
        found.append(data[at:end])
        at = end
        if at >= len(data):
            break
    return [*found, data[at:]]


@fuzz_target([b"</s>\nab\nabc", b"aa\nHello aaab", b"\xc3\xa9\n\xc3\xa9"], [b"\n", b"aab", b"ab", b"aa"])
def stop_strings(data: bytes) -> str:
    """The text before the stop string that ends first, however it is cut; the first two lines are the stop strings."""
    first, _, rest = data.partition(b"\n")
    second, _, said = rest.partition(b"\n")
    stops = [stop for stop in (first.decode(errors="replace"), second.decode(errors="replace")) if stop][:4]
    text = said.decode(errors="replace")
    pieces = [piece.decode("utf-32-le") for piece in _characters(text)]
    found: str | None = None
    stopping, kept = StopStrings(stops), ""
    for piece in pieces:
        passed, found = stopping.push(piece)
        kept += passed
        if found is not None:
            break
    kept += stopping.flush()
    ends = [(text.find(stop) + len(stop), text.find(stop)) for stop in stops if stop in text]
    assert kept == (text[: min(ends)[1]] if ends else text)
    return f"{found is not None}"


@fuzz_target([b"<think>\nLet me see.", b"  <think", b"<thin<think>a"], [b"<think>", b"</think>", b" "])
def thoughts(data: bytes) -> str:
    """What a model writes as its thought, without white space before it and without one opening."""
    text = data.decode(errors="replace")
    thought, said = _ThoughtText(), ""
    pieces = [piece.decode("utf-32-le") for piece in _characters(text)]
    for place, piece in enumerate(pieces):
        said += thought.push(piece, last=place + 1 == len(pieces))
    assert len(said) <= len(text)
    assert text.endswith(said)
    return f"{bool(said)}"


_PROMPTS = ("What is 2 + 2?", "Which one?\nA) red\nB) blue", "Answer as JSON.", "How many apples are there?")
_MORE = (
    "Put the result in \\boxed{}.",
    "Answer with one of: red, green, blue.",
    "Wrap it in [[your answer]], in double square brackets.",
    "What is the output of print(f(1))?",
    "Who wrote it?",
)
_FINAL = [
    b"The answer is 1,234.5e3",
    b"#### 17",
    b"\\boxed{3/4}",
    b"**B)** blue",
    b'{"a": [1, 2.0]}',
    b"Yes.",
    b"- 1e999",
    b"<answer>{2, 1}</answer>",
    b"[[a, b]]",
    b"\n" * 8000,
    b"answer: labels: = 1 " + b" " * 8000,
]


@fuzz_target(
    _FINAL,
    [
        b"answer is ",
        b"#### ",
        b"\\boxed{",
        b"1e99",
        b"/1",
        b"(A) ",
        b"\nB. ",
        b"yes",
        b"**",
        b",000",
        b"[[",
        b"</answer>",
        b"\\frac",
    ],
)
def final_answers(data: bytes) -> str:
    """Of a text of any length; equal texts agree with each other."""
    text, found = data.decode(errors="replace"), []
    for prompt in (*_PROMPTS, *_MORE, text):
        said = agreement(prompt, text, text)
        assert said in (None, 1.0)
        found.append(said)
        kind = answer_kind(prompt)
        if kind is not None:
            extract_answer(prompt, kind, text)
        options(prompt)
    likely_number(text)
    return f"{found[:4]} {yes_or_no(text)}"
