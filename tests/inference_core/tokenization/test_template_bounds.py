"""What a template takes is bounded: of a stranger's by a child that renders it first, of a caller's chats by the clock
and by characters, and a template that is too large is not compiled."""

from pathlib import Path
from typing import Any

import pytest
from jinja2 import nodes

from inference_core.errors import InvalidRequestError, ModelFileError
from inference_core.tokenization import chat_template, tokenizer_trial
from inference_core.tokenization.chat_template import ChatTemplate, TemplateWorkError
from inference_core.tokenization.hf_vocabulary import read_hf_vocabulary
from inference_core.tokenization.tokenizer import Tokenizer
from inference_core.tokenization.tokenizer_trial import require_bounded_template
from tests.inference_core.quantization.tiny_model import write_tiny_model
from tests.inference_core.tokenization.hostile_templates import LARGE, LONG, REFUSED, UNREADABLE
from tests.inference_core.tokenization.long_chats import CHATS, HONEST

HI = [{"role": "user", "content": "hi"}]


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def render(source: str, messages: Any = HI, **extra: Any) -> str:
    return ChatTemplate(source, {}).render(messages, add_generation_prompt=True, extra=extra)


# -- a stranger's template --------------------------------------------------------------------------


@pytest.mark.parametrize("name", LARGE)
def test_a_template_that_takes_too_much_memory_is_refused_by_a_child(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tokenizer_trial, "MAX_TEMPLATE_BYTES", 64 << 20)
    with pytest.raises(ModelFileError, match=r"does too much: .* more than 64 MB"):
        require_bounded_template(LARGE[name], {})


@pytest.mark.parametrize("name", LONG)
def test_a_template_that_takes_too_long_is_refused_by_a_child(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tokenizer_trial, "MAX_TEMPLATE_SECONDS", 1)
    with pytest.raises(ModelFileError, match="does too much"):
        require_bounded_template(LONG[name], {})


def test_the_template_for_chats_with_tools_is_tried_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tokenizer_trial, "MAX_TEMPLATE_SECONDS", 1)
    with pytest.raises(ModelFileError, match="does too much"):
        require_bounded_template("", {}, with_tools=LONG["nested loops"])


@pytest.mark.parametrize("name", HONEST)
def test_a_template_as_public_ones_are_passes(name: str) -> None:
    require_bounded_template(HONEST[name], {})


def test_a_model_whose_template_does_too_much_is_not_loaded(tmp_path: Path) -> None:
    folder = write_tiny_model(tmp_path / "model")
    (folder / "chat_template.jinja").write_text(LARGE["'a' * 10**9"])
    with pytest.raises(ModelFileError, match="the chat template does too much"):
        read_hf_vocabulary(folder)


@pytest.mark.parametrize("source", REFUSED)
def test_what_the_sandbox_does_not_allow_is_refused(source: str) -> None:
    with pytest.raises((InvalidRequestError, ModelFileError)):
        render(source)


@pytest.mark.parametrize("name", UNREADABLE)
def test_a_source_that_is_too_large_or_nested_too_deeply_is_no_template(name: str) -> None:
    with pytest.raises(ModelFileError, match="chat template"):
        ChatTemplate(UNREADABLE[name], {})


@pytest.mark.parametrize(
    "value", ["'a' * 10**20", "[1]|tojson(indent=10**20)", "'a'|center(10**20)", "raise_exception('x')"]
)
@pytest.mark.parametrize("around", ["{{ VALUE }}", "{% set x = VALUE %}", "{% if VALUE %}{% endif %}"])
def test_nothing_is_computed_while_a_template_is_compiled(
    value: str, around: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    computed: list[object] = []
    for kind in (nodes.Mul, nodes.Pow, nodes.Filter, nodes.Call):
        monkeypatch.setattr(kind, "as_const", lambda self, eval_ctx=None: computed.append(self) or "")
    ChatTemplate(around.replace("VALUE", value), {})
    assert computed == []


# -- a caller's chats -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "source",
    [
        "{% for m in messages %}{% endfor %}",
        "{% for m in messages if m.role == 'user' %}{% endfor %}",
        "{% macro m() %}{% endmacro %}{{ m() }}",
        "{% macro m() %}{{ caller() }}{% endmacro %}{% call m() %}{% endcall %}",
        "{% set x %}a{% endset %}",
        "{{ messages | tojson(indent=1) }}",
        "a",
    ],
)
def test_a_render_that_takes_too_long_ends_at_the_next_loop_macro_or_text(
    source: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    render(source)
    monkeypatch.setattr(chat_template, "MAX_SECONDS", -1.0)
    with pytest.raises(TemplateWorkError, match="shorten them") as error:
        render(source)
    assert error.value.param == "messages"


def test_a_chat_that_a_template_compares_turn_by_turn_is_refused_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chat_template, "MAX_SECONDS", 0.2)
    messages, tools = CHATS["many calls"](1.0)
    with pytest.raises(TemplateWorkError, match=r"takes more than 0\.2 s"):
        render(HONEST["calls of results"], messages, tools=tools)


@pytest.mark.parametrize(
    "source",
    [
        "{% for m in messages * 20 %}{{ m.content }}{% endfor %}",
        "{% set x %}{% for m in messages * 20 %}{{ m.content }}{% endfor %}{% endset %}",
        "{% macro m() %}{% for m in messages * 20 %}{{ m.content }}{% endfor %}{% endmacro %}{{ m() | length }}",
        "{{ [[[messages]]] | tojson(indent=40) | length }}",
    ],
)
def test_texts_longer_than_any_prompt_are_refused(source: str, monkeypatch: pytest.MonkeyPatch) -> None:
    render(source, [{"role": "user", "content": "some words"}])
    monkeypatch.setattr(chat_template, "MAX_CHARACTERS", 150)
    with pytest.raises(TemplateWorkError, match="writes more than 150 characters"):
        render(source, [{"role": "user", "content": "some words"}])


def test_where_memory_ends_the_chat_is_refused() -> None:
    with pytest.raises(TemplateWorkError, match="more memory than there is"):
        render("{{ 'a' * messages[0].n }}", [{"role": "user", "content": "a", "n": 1 << 60}])


def test_a_deadline_that_has_passed_is_over_with_its_render(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chat_template, "MAX_SECONDS", -1.0)
    with pytest.raises(TemplateWorkError):
        render("a")
    monkeypatch.undo()
    assert render("{{ [1] | tojson(indent=1) }}{% for i in [1, 2] %}{{ i }}{% endfor %}") == "[\n 1\n]12"


@pytest.mark.parametrize(("slow_seconds", "is_slow"), [(-1.0, True), (1000.0, False)])
def test_a_template_is_slow_where_short_chats_take_longer_than_the_event_loop_should_wait(
    slow_seconds: float, is_slow: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("inference_core.tokenization.tokenizer.SLOW_SECONDS", slow_seconds)
    folder = write_tiny_model(tmp_path / "model")
    (folder / "chat_template.jinja").write_text(HONEST["turns"])
    assert Tokenizer(read_hf_vocabulary(folder)).renders_slowly == is_slow


def test_a_template_that_took_too_long_is_slow_from_then_on(monkeypatch: pytest.MonkeyPatch) -> None:
    template = ChatTemplate("", {}, with_tools="a")
    monkeypatch.setattr(chat_template, "MAX_SECONDS", -1.0)
    with pytest.raises(TemplateWorkError):
        template.render(HI, add_generation_prompt=True, extra={"tools": [{}]})
    assert template.is_slow


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        (
            "{% for m in messages if m.role == 'user' %}{{ loop.index }}{{ loop.last }}{% else %}none{% endfor %}",
            "1True",
        ),
        ("{% for m in messages if m.role == 'tool' %}x{% else %}none{% endfor %}", "none"),
        ("{% for x in [1, [2]] recursive %}{{ x if x is integer else loop(x) }}{% endfor %}", "12"),
        ("{{ messages|selectattr('role', 'equalto', 'user')|map(attribute='content')|join(', ') }}", "hi"),
        ("{% macro m(a, b=2) %}{{ a }}{{ b }}{{ varargs }}{% endmacro %}{{ m(1) }} {{ m(1, 3, 4) }}", "12() 13(4,)"),
        ("{% set x %}a{{ 1 }}b{% endset %}{{ x }} {% filter upper %}q{{ 'w' }}{% endfilter %}", "a1b QW"),
        ("{% autoescape true %}{{ '<' }}{{ '<' ~ 1 }}{% endautoescape %}{{ '<' }}", "&lt;&lt;1<"),
        ("{{ [[1], {'a': '<'}]|tojson(separators=(',', ':')) }}", '[[1],{"a":"<"}]'),
    ],
)
def test_the_bounds_change_nothing_of_what_a_template_means(source: str, expected: str) -> None:
    assert render(source) == expected
