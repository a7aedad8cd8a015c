"""The work of a chat template is bounded by what it is given, and a template that is too large is not compiled."""

from pathlib import Path
from typing import Any

import pytest

from inference_core.errors import InvalidRequestError, ModelFileError
from inference_core.tokenization import template_budget
from inference_core.tokenization.chat_template import ChatTemplate
from inference_core.tokenization.template_budget import TemplateWorkError
from tests.inference_core.tokenization.hostile_templates import REFUSED, UNREADABLE, WORK

HI = [{"role": "user", "content": "hi"}]
MOST_BYTES = 64 * 2**20


def render(source: str, messages: Any = HI, **extra: Any) -> str:
    return ChatTemplate(source, {}).render(messages, add_generation_prompt=True, extra=extra)


def resident_bytes(field: str) -> int:
    """Of this process: "VmRSS" now, "VmHWM" at most. To trace allocations instead takes three times the render."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{field}:"))


@pytest.mark.parametrize("name", WORK)
def test_a_template_that_does_more_work_than_its_messages_allow_ends_with_an_error(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # By its units alone: the clock is for what they do not say.
    monkeypatch.setattr(template_budget, "MAX_SECONDS", 600.0)
    before = resident_bytes("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # resets VmHWM
    with pytest.raises(TemplateWorkError) as error:
        render(WORK[name])
    assert resident_bytes("VmHWM") - before < MOST_BYTES
    assert error.value.param == "messages"


@pytest.mark.parametrize("source", REFUSED)
def test_what_no_budget_could_bound_is_refused(source: str) -> None:
    with pytest.raises(InvalidRequestError):
        render(source)


@pytest.mark.parametrize("name", UNREADABLE)
def test_a_source_that_is_too_large_or_nested_too_deeply_is_no_template(name: str) -> None:
    with pytest.raises(ModelFileError, match="chat template"):
        ChatTemplate(UNREADABLE[name], {})


def test_a_render_that_takes_too_long_ends_whatever_its_units(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(template_budget, "MAX_SECONDS", -1.0)
    with pytest.raises(TemplateWorkError):
        render("{% for i in range(60000) %}{% endfor %}")


def test_a_longer_chat_may_take_more_work() -> None:
    source = "{% for i in range(10) %}{% for j in range(20000) %}{{ j }}{% endfor %}{% endfor %}"
    with pytest.raises(TemplateWorkError):
        render(source)
    assert render(source, HI * 1000).endswith("19999")
    text = [{"role": "user", "content": "x" * 300_000}]
    copies = (
        "{% set ns = namespace(x='') %}{% for i in range(10) %}{% set ns.x = messages[0].content|upper %}{% endfor %}"
    )
    assert render(copies + "{{ ns.x }}", text) == "X" * 300_000


def test_a_template_is_slow_by_its_own_work_and_not_by_the_length_of_chats() -> None:
    plain = ChatTemplate("{% for m in messages %}{{ m.role }}: {{ m.content|trim }}{% endfor %}", {})
    plain.render([{"role": "user", "content": "x" * 900_000}], add_generation_prompt=True, extra={})
    assert not plain.is_slow
    slow = ChatTemplate("{% for i in range(30000) %}{{ i }}{% endfor %}", {})
    slow.render(HI, add_generation_prompt=True, extra={})
    assert slow.is_slow
    other = ChatTemplate("", {}, with_tools=slow.source)
    other.render(HI, add_generation_prompt=True, extra={"tools": [{}]})
    assert other.is_slow


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("{{ 'a' + 'b' + messages[0].content }}", "abhi"),
        ("{{ 1 + 2 + 3 }} {{ [1] + [2] + [3] }} {{ (1,) + (2,) }}", "6 [1, 2, 3] (1, 2)"),
        ("{{ " + " + ".join(["'a'"] * 40) + " }}", "a" * 40),
        ("{{ " + " ~ ".join(["1"] * 40) + " }}", "1" * 40),
        ("{{ 'ab' * 2 }} {{ 3 * 4 }} {{ 2 ** 3 }} {{ 7 % 4 }} {{ '%s-%03d' % ('x', 5) }}", "abab 12 8 3 x-005"),
        ("{{ '12345 %s' % 'x' }} {{ '%(a)s' % {'a': 1} }} {{ '%s'|format(3) }}", "12345 x 1 3"),
        ("{{ '{}-{:>4}-{a}'.format(1, 2, a=3) }} {{ '{a}'.format_map({'a': 1}) }}", "1-   2-3 1"),
        ("{{ (1 < 2 < 3) }} {{ 1 in [1, 2] }} {{ 'h' not in messages[0].content }}", "True True False"),
        ("{{ [1, [2]] == [1, messages|length|list if false else [2]] }}", "True"),
        (
            "{{ messages[0]['content'][::-1] }} {{ messages[0].get('x', 5) }} {{ messages[0].items()|list|length }}",
            "ih 5 2",
        ),
        (
            "{% for m in messages if m.role == 'user' %}{{ loop.index }}{{ loop.last }}{% else %}none{% endfor %}",
            "1True",
        ),
        ("{% for m in messages if m.role == 'tool' %}x{% else %}none{% endfor %}", "none"),
        ("{{ messages|selectattr('role', 'equalto', 'user')|map(attribute='content')|join(', ') }}", "hi"),
        ("{{ [3, 1, 2]|sort|join }} {{ [1, 1]|unique|list }} {{ [1, 2]|sum }} {{ [2, 1]|max }}", "123 [1] 3 2"),
        ("{{ {'b': 1, 'a': 2}|dictsort }} {{ {'a': 1}|length }}", "[('a', 2), ('b', 1)] 1"),
        ("{{ 'a b'.split(' ')[-1].upper() }} {{ 'x'.center(3) }}| {{ 'aXb'.replace('X', '--') }}", "B  x | a--b"),
        ("{{ ' a '|trim }}{{ 'a\nb'|indent(2) }} {{ 'ab'|replace('b', 'cc') }} {{ '<'|e }}", "aa\n  b acc &lt;"),
        ("{{ [1, 2, 3]|batch(2)|list }} {{ 2.5|round|int }} {{ nothing|default('d') }}", "[[1, 2], [3]] 2 d"),
        ("{% macro m(a, b=2) %}{{ a }}{{ b }}{{ varargs }}{% endmacro %}{{ m(1) }} {{ m(1, 3, 4) }}", "12() 13(4,)"),
        ("{% set ns = namespace(n=1) %}{{ ns.n }}{{ namespace(context=1).context }}", "11"),
        ("{% set x %}a{{ 1 }}b{% endset %}{{ x }} {% filter upper %}q{{ 'w' }}{% endfilter %}", "a1b QW"),
        ("{% autoescape true %}{{ '<' }}{{ '<' ~ 1 }}{% endautoescape %}{{ '<' }}", "&lt;&lt;1<"),
        ("{{ messages[0].items is defined }} {{ messages[0].nope is defined }}", "True False"),
    ],
)
def test_the_budget_changes_nothing_of_what_a_template_means(source: str, expected: str) -> None:
    assert render(source) == expected
