"""How a template writes calls is found out by rendering some: they are read back, streamed in any pieces, and forced
calls follow the same form and their schemas."""

import itertools
import json
from functools import cache
from typing import Any

import jsonschema
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inference_core.protocol import Grammar
from inference_core.tokenization.chat_template import ChatTemplate
from tests.inference_core.grammar.byte_vocabulary import EOS
from tests.inference_core.grammar.test_answers_obey import COMPILER, VOCABULARY, random_answer
from tests.inference_core.grammar.test_matcher import allowed
from tiers.conversation import Tool, Tooling
from tiers.dialects.written.call_dialects import AnyDialect
from tiers.dialects.written.call_dialects import call_dialect_of as named_by_marks
from tiers.dialects.written.call_grammar import call_grammar
from tiers.dialects.written.probe_dialect import parser_of, probed

TURN = "{% for m in messages %}<|{{ m.role }}|>{{ m.content or '' }}@<|end|>{% endfor %}{{ tools and '' }}"


def each(call: str) -> str:
    """What is written for each call; `f` is its function."""
    return "{% for c in m.tool_calls or [] %}{% set f = c.function %}" + call + "{% endfor %}"


def together(head: str, call: str, tail: str, separator: str = ", ") -> str:
    """What is written around all calls, for each, and between two."""
    return (
        "{% if m.tool_calls %}"
        + head
        + each(call + "{{ '" + separator + "' if not loop.last }}")
        + tail
        + "{% endif %}"
    )


def listed(before: str, between: str, after: str) -> str:
    """What is written for each argument."""
    value = "{{ v if v is string else v | tojson }}"
    return "{% for k, v in f.arguments.items() %}" + before + "{{ k }}" + between + value + after + "{% endfor %}"


JSON = '{"name": "{{ f.name }}", "arguments": {{ f.arguments | tojson }}}'
# By the families that write calls so.
BODIES = {
    "Hermes, Qwen": each("<tool_call>\n" + JSON + "\n</tool_call>"),
    "Mistral": together("[TOOL_CALLS][", JSON.replace("}}}", '}}, "id": "{{ c.id }}"}'), "]"),
    "Mistral, later": each("[TOOL_CALLS]{{ f.name }}[ARGS]{{ f.arguments | tojson }}"),
    "Mistral, with ids": each("[TOOL_CALLS]{{ f.name }}[CALL_ID]{{ c.id }}[ARGS]{{ f.arguments | tojson }}"),
    "Granite": together("<|tool_call|>[", JSON, "]"),
    "Cohere": together(
        "<|START_ACTION|>[\n",
        '    {"tool_call_id": "0", "tool_name": "{{ f.name }}", "parameters": {{ f.arguments | tojson }}}',
        "\n]<|END_ACTION|>",
        ",\n",
    ),
    "Kimi": together(
        "<|calls|>",
        "<|call|>functions.{{ f.name }}:{{ loop.index0 }}<|args|>{{ f.arguments | tojson }}<|end_call|>",
        "<|end_calls|>",
        "",
    ),
    "DeepSeek": together(
        "<｜calls｜>",
        "<｜call｜>function<｜sep｜>{{ f.name + '\n```json\n' + f.arguments + '\n```' }}<｜end▁call｜>",
        "<｜end▁calls｜>",
        "",
    ),
    "Qwen3-Coder": each(
        "<tool_call>\n<function={{ f.name }}>\n"
        + listed("<parameter=", ">\n", "\n</parameter>\n")
        + "</function>\n</tool_call>\n"
    ),
    "GLM": each(
        "<tool_call>{{ f.name }}\n" + listed("<arg_key>", "</arg_key>\n<arg_value>", "</arg_value>\n") + "</tool_call>"
    ),
    "MiniMax": together(
        "<calls>\n",
        '<invoke name="{{ f.name }}">\n' + listed('<parameter name="', '">', "</parameter>\n") + "</invoke>\n",
        "</calls>",
        "",
    ),
    "types in the marks": each(
        '<invoke name="{{ f.name }}">'
        + listed('<p name="', '" string="{{ (v is string) | lower }}">', "</p>")
        + "</invoke>"
    ),
    "Python": together(
        "[",
        "{{ f.name }}({% for k, v in f.arguments.items() %}{{ k }}={{ v | tojson }}"
        "{{ ', ' if not loop.last }}{% endfor %})",
        "]",
    ),
}
ADD: dict[str, Any] = {
    "type": "object",
    "properties": {
        "a": {"type": "integer", "minimum": 0, "maximum": 99},
        "note": {"type": "string"},
        "unit": {"enum": ["cm", "inch"]},
        "flags": {"type": "array", "items": {"type": "boolean"}, "maxItems": 2},
    },
    "required": ["a", "note"],
    "additionalProperties": False,
}
TOOLS = {tool.name: tool for tool in (Tool(name="add", parameters=ADD, strict=True), Tool(name="now"))}
Calls = list[tuple[str, Any]]


@cache
def template_of(body: str) -> ChatTemplate:
    return ChatTemplate(TURN.replace("@", body), {})


def dialect_of(body: str) -> tuple[AnyDialect, bool]:
    """The dialect, and whether arguments are text."""
    template = template_of(body)

    def render(turns: Any, tools: Any) -> str:
        return template.render(turns, add_generation_prompt=False, extra={"tools": tools})

    probe = probed(render, ["<|end|>"])
    assert probe.dialect is not None
    return probe.dialect, probe.text_arguments


def written(body: str, calls: Calls, *, text_arguments: bool) -> str:
    """What the template makes of an answer with `calls`."""
    made = [
        {"id": f"id{index:07}", "function": {"name": name, "arguments": json.dumps(said) if text_arguments else said}}
        for index, (name, said) in enumerate(calls)
    ]
    turns = [{"role": "assistant", "content": "", "tool_calls": made}]
    rendered = template_of(body).render(turns, add_generation_prompt=False, extra={"tools": None})
    return rendered.removeprefix("<|assistant|>").removesuffix("None").removesuffix("<|end|>")


def read(dialect: AnyDialect, pieces: list[str], most: int | None = None) -> tuple[str, Calls]:
    """The text, and the calls in it."""
    parser = parser_of(dialect, TOOLS, most)
    said = [parser.feed(piece) for piece in pieces] + [parser.finish()]
    calls: list[list[str]] = []
    for delta in (delta for part in said for delta in part.calls):
        if delta.id:
            assert delta.index == len(calls)
            calls.append([delta.name, ""])
        calls[delta.index][1] += delta.arguments
    return "".join(part.text for part in said), [(name, json.loads(arguments)) for name, arguments in calls]


def is_allowed(grammar: Grammar, answer: str) -> bool:
    """Whether the grammar allows `answer`, and its end behind it."""
    matcher = COMPILER.compile(grammar)()
    for token in VOCABULARY.encode_continued(answer):
        if token not in allowed(matcher)[0]:
            return False
        matcher.accept(token)
    return EOS in allowed(matcher)[0]


DIALECTS = {name: dialect_of(body) for name, body in BODIES.items()}
ONE = ("add", {"a": 1, "note": 'two\nlines, "quoted" <b>&</b>', "unit": "cm", "flags": [True, False]})
OTHER = ("add", {"a": -2, "note": "7"})


@pytest.mark.parametrize("name", BODIES)
@pytest.mark.parametrize("calls", [[ONE], [OTHER], [ONE, OTHER]], ids=["one", "text that looks like a number", "two"])
@given(cuts=st.lists(st.integers(0, 400), max_size=6))
@settings(max_examples=15)
def test_what_a_template_writes_is_read_back_in_any_pieces(name: str, calls: Calls, cuts: list[int]) -> None:
    dialect, text_arguments = DIALECTS[name]
    answer = written(BODIES[name], calls, text_arguments=text_arguments)
    edges = [0, *sorted(cuts), max(len(answer), *cuts, 0)]

    text, read_calls = read(dialect, [answer[start:end] for start, end in itertools.pairwise(edges)])

    assert (text.strip(), read_calls) == ("", calls)


@pytest.mark.parametrize("name", BODIES)
def test_text_before_calls_and_text_alone_stay_text(name: str) -> None:
    dialect, text_arguments = DIALECTS[name]
    answer = written(BODIES[name], [ONE], text_arguments=text_arguments)

    assert read(dialect, list("2 < 3, [see] and {so} on"))[0] == "2 < 3, [see] and {so} on"
    assert read(dialect, list("Let me add.\n" + answer)) == ("Let me add.", [ONE])


@pytest.mark.parametrize("name", BODIES)
def test_calls_of_unknown_functions_and_calls_cut_off_are_text(name: str) -> None:
    dialect, text_arguments = DIALECTS[name]
    unknown = written(BODIES[name], [("sub", {"a": 1})], text_arguments=text_arguments)
    cut = written(BODIES[name], [ONE], text_arguments=text_arguments)[:12]

    assert read(dialect, list(unknown)) == (unknown, [])
    assert read(dialect, list(cut)) == (cut, [])


@pytest.mark.parametrize("name", BODIES)
def test_where_one_call_is_allowed_the_first_one_counts(name: str) -> None:
    dialect, text_arguments = DIALECTS[name]
    answer = written(BODIES[name], [ONE, OTHER], text_arguments=text_arguments)

    assert read(dialect, [answer], most=1)[1] == [ONE]


@pytest.mark.parametrize("name", BODIES)
@pytest.mark.parametrize("parallel", [False, True])
def test_forced_calls_have_the_templates_form_and_follow_their_schemas(name: str, parallel: bool) -> None:
    dialect, _ = DIALECTS[name]
    # A text that ends where its mark begins has no end when it is drawn at random.
    properties = ADD["properties"] | {"note": {"enum": ["a", "b c"]}}
    tools = (Tool(name="add", parameters=ADD | {"properties": properties}), TOOLS["now"])
    grammar = call_grammar(Tooling(tools=tools, choice="required", parallel=parallel), dialect, {}, None)
    assert grammar is not None

    for seed in range(4):
        answer = random_answer(grammar, seed, most=4000)
        assert answer is not None
        text, calls = read(dialect, [answer])
        assert text.strip() == ""
        assert calls
        for called, arguments in calls:
            jsonschema.validate(arguments, tools[called == "now"].schema)


@pytest.mark.parametrize("name", BODIES)
def test_what_a_template_writes_is_what_a_forced_answer_may_be(name: str) -> None:
    dialect, text_arguments = DIALECTS[name]
    grammar = call_grammar(Tooling(tools=(*TOOLS.values(),), choice="required"), dialect, {}, None)
    assert grammar is not None
    calls = [("add", {"a": 1, "note": "two\nlines <b>&</b>", "flags": [True]})]
    answer = written(BODIES[name], calls, text_arguments=text_arguments).strip()

    assert is_allowed(grammar, answer.replace(', "id": "id0000000"', "").replace('"tool_call_id": "0", ', ""))


@pytest.mark.parametrize(
    ("source", "answer"),
    [
        ("{{ '<|tool_call|>' }}", '<|tool_call|>[{"name": "now", "arguments": {}}]'),
        ("<|tool_call|>…<|/tool_call|>", '<|tool_call|>[{"name": "now", "arguments": {}}]<|/tool_call|>'),
        ("<|tool_call_start|>", "<|tool_call_start|>[now()]<|tool_call_end|>"),
        ("<tool_call>", '<tool_call>\n{"name": "now", "arguments": {}}}\n</tool_call>'),
    ],
    ids=["Granite", "Phi-4-mini", "LFM2", "a brace too many"],
)
def test_families_whose_templates_show_no_calls_are_known_by_their_marks(source: str, answer: str) -> None:
    assert read(named_by_marks(source), list(answer)) == ("", [("now", {})])


def test_a_template_that_shows_no_calls_has_no_dialect() -> None:
    template = ChatTemplate("{% for m in messages %}{{ m.content }}{% endfor %}{{ tools and '' }}", {})

    def render(turns: Any, tools: Any) -> str:
        return template.render(turns, add_generation_prompt=False, extra={"tools": tools})

    assert probed(render, []).dialect is None
