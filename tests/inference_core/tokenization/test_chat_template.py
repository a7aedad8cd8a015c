"""Chat templates: what transformers gives them, what the sandbox denies them, how their refusals surface."""

from datetime import datetime
from typing import Any

import pytest

from inference_core.errors import InvalidRequestError, ModelFileError
from inference_core.tokenization.chat_template import ChatTemplate

USER = [{"role": "user", "content": "hi"}]


def render(source: str, messages: Any = USER, **extra: Any) -> str:
    return ChatTemplate(source, {"bos_token": "<s>"}).render(messages, add_generation_prompt=True, extra=extra)


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("{{ bos_token }}{{ messages[0].content }}", "<s>hi"),
        ("{{ messages | tojson }}", '[{"role": "user", "content": "hi"}]'),
        ("{{ {'b': '<é>', 'a': 1} | tojson(indent=1, sort_keys=true) }}", '{\n "a": 1,\n "b": "<é>"\n}'),
        ("{% for m in messages %}{% if true %}{% break %}{% endif %}x{% endfor %}.", "."),
        ("a{% generation %}b{{ messages[0].role }}{% endgeneration %}c", "abuserc"),
        ("  {% if add_generation_prompt %}\nyes\n  {% endif %}\nend", "yes\nend"),
        ("{{ tools is none }} {{ thinking }}", "True False"),
        ("{% set ns = namespace(n=0) %}{% set ns.n = 3 %}{{ ns.n }}", "3"),
    ],
)
def test_templates_render_as_in_transformers(source: str, expected: str) -> None:
    assert render(source, thinking=False) == expected


def test_templates_know_the_date() -> None:
    assert render("{{ strftime_now('%Y') }}") in {str(datetime.now().year), str(datetime.now().year - 1)}


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("{{ raise_exception('roles must alternate') }}", "roles must alternate"),
        ("{{ messages[0].content + messages[0].nothing }}", "has no attribute 'nothing'"),
        ("{{ ''.__class__.__mro__ }}", "unsafe"),
        ("{{ messages.append(1) }}", "unsafe"),
        ("{{ 1 / 0 }}", "division by zero"),
        ("{{ messages[0].content + 1 }}", "can only concatenate str"),
        ("{% for i in range(10**9) %}{% endfor %}", "Range too big"),
    ],
)
def test_a_templates_objection_names_the_messages(source: str, reason: str) -> None:
    with pytest.raises(InvalidRequestError, match=reason) as error:
        render(source)
    assert error.value.param == "messages"


def test_a_template_that_is_not_jinja_is_refused_as_a_bad_file() -> None:
    with pytest.raises(ModelFileError, match="not valid Jinja"):
        ChatTemplate("{% for %}", {})
