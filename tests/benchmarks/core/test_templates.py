"""Of a folder of chat templates it is said which are read, and whose tool calls are read back."""

from pathlib import Path

from benchmarks.core.templates import TemplateRow, bench_templates

TURNS = "{% for m in messages %}<|{{ m.role }}|>{{ m.content or '' }}"
CALLS = (
    "{% if tools %}{{ tools | tojson }}{% endif %}" + TURNS + "{% for c in m.tool_calls or [] %}<tool_call>"
    '{"name": "{{ c.function.name }}", "arguments": {{ c.function.arguments | tojson }}}</tool_call>{% endfor %}'
    "{% endfor %}"
)


def test_each_template_has_its_outcome(tmp_path: Path) -> None:
    for name, text in (
        ("calls", CALLS),
        ("none", TURNS + "{% endfor %}"),
        ("silent", "{% if tools %}{{ tools | tojson }}{% endif %}" + TURNS + "{% endfor %}"),
        ("wrong", TURNS),
    ):
        (tmp_path / f"{name}.jinja").write_text(text)
    rows = {row.name.removesuffix(".jinja"): row for row in bench_templates(tmp_path)}
    assert {name: row.outcome for name, row in rows.items()} == {
        "calls": "read back",
        "none": "no tools",
        "silent": "shows no calls",
        "wrong": "refused",
    }
    assert isinstance(rows["wrong"], TemplateRow)
    assert rows["wrong"].detail
