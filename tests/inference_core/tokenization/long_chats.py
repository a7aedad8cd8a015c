"""Templates that do what public ones do, and chats that make the most of them within a request's bounds."""

from collections.abc import Callable
from random import Random
from typing import Any

Chat = tuple[list[dict[str, Any]], list[dict[str, Any]] | None]
"""Messages and tools."""

HONEST: dict[str, str] = {
    "turns": "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content | trim }}<|im_end|>\n{% endfor %}",
    "indented tools": "{% for t in tools or [] %}{{ t | tojson(indent=4) }}\n{% endfor %}{{ messages[0].content }}",
    "indented calls": "{% for m in messages %}{{ m.content }}{% for c in m.tool_calls or [] %}"
    "{{ c.function.arguments | tojson(indent=2) }}{% endfor %}{% endfor %}",
    # In the form of Mistral's: the tools stand before the last user's turn.
    "tools before the last user": "{% set users = messages | selectattr('role', 'equalto', 'user') | list %}"
    "{% for m in messages %}{% if tools and m == users[-1] %}[TOOLS]{{ tools | tojson }}[/TOOLS]{% endif %}"
    "{{ m.content }}{% endfor %}",
    # In the form of Solar's: a result names the function of its call, which is searched in all turns.
    "calls of results": "{% for m in messages %}{% if m.role == 'tool' %}{% for other in messages %}"
    "{% for c in other.tool_calls or [] %}{% if c.id == m.tool_call_id %}{{ c.function.name }}{% endif %}{% endfor %}"
    "{% endfor %}{% endif %}{{ m.content }}{% endfor %}",
    # In the form of DeepSeek's: all system turns are joined before the first user's.
    "joined system turns": "{% set ns = namespace(text='') %}{% for m in messages %}{% if m.role == 'system' %}"
    "{% set ns.text = ns.text + '\n\n' + m.content %}{% endif %}{% endfor %}{{ ns.text }}",
    # In the form of gpt-oss's: a macro that calls itself writes the schemas of tools.
    "schemas by a macro": "{% macro kind(s, by) %}{% if s.properties %}{% for key, one in s.properties.items() %}"
    "{{ by }}{{ key }}: {{ kind(one, by + '  ') }}\n{% endfor %}{% else %}{{ s.type }}{% endif %}{% endmacro %}"
    "{% for t in tools or [] %}{{ kind(t.function.parameters, '') }}{% endfor %}",
    "thoughts": "{% for m in messages %}{% if '</think>' in m.content %}"
    "{{ m.content.split('</think>')[-1].lstrip('\n') }}{% else %}{{ m.content }}{% endif %}{% endfor %}",
}
"""By name."""


def _turns(role: str, count: int, text: str) -> list[dict[str, Any]]:
    return [{"role": role, "content": text} for _ in range(count)]


def _offered(parameters: Any, count: int = 1) -> list[dict[str, Any]]:
    return [{"type": "function", "function": {"name": "f", "description": "d", "parameters": parameters}}] * count


def _nested(levels: int, inner: Any) -> Any:
    for _ in range(levels // 2):
        inner = {"type": "object", "properties": {"a": inner}}
    return inner


def _agent(count: int, text: str) -> list[dict[str, Any]]:
    steps: list[dict[str, Any]] = []
    for number in range(count // 2):
        call = {"id": f"c{number}", "type": "function", "function": {"name": "f", "arguments": {"a": number}}}
        steps.append({"role": "assistant", "content": "", "tool_calls": [call]})
        steps.append({"role": "tool", "tool_call_id": f"c{number}", "content": text})
    return steps


CHATS: dict[str, Callable[[float], Chat]] = {
    "many turns": lambda share: (_turns("user", int(20_000 * share), "a"), _offered({}, 512)),
    "many long turns": lambda share: (_turns("user", int(20_000 * share), "a " * 700), None),
    "many system turns": lambda share: (_turns("system", int(20_000 * share), "a " * 700), None),
    "many calls": lambda share: (_agent(int(20_000 * share), "r"), _offered({})),
    "a long text": lambda share: (_turns("user", 1, "\n" * int(30_000_000 * share)), None),
    "many thoughts": lambda share: (_turns("assistant", 3, "</think>" * int(1_300_000 * share)), None),
    "a deep wide tool": lambda share: (_turns("user", 1, "a"), _offered(_nested(110, [1] * int(5_000_000 * share)))),
    "a deep tool of many fields": lambda share: (
        _turns("user", 1, "a"),
        _offered(_nested(110, {"properties": {str(n): {} for n in range(int(100_000 * share))}})),
    ),
    "a deep wide call": lambda share: (
        [{"role": "assistant", "content": "", "tool_calls": [
            {"id": "c", "function": {"name": "f", "arguments": _nested(110, ["a"] * int(3_000_000 * share))}}
        ]}],
        None,
    ),
}  # fmt: skip
"""By name; with the share of what a request may hold."""


def drawn_long_chat(draw: Random) -> tuple[str, str, Chat]:
    """A template and a chat: a label, the source, and the chat."""
    template, chat, share = draw.choice(list(HONEST)), draw.choice(list(CHATS)), draw.choice((0.1, 0.4, 1.0))
    return f"{chat} x {share} to a template of {template}", HONEST[template], CHATS[chat](share)
