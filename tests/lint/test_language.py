"""The lint of the project's prose."""

from pathlib import Path

import pytest

from tests.lint.language import ALLOWED, main, problems_of


@pytest.mark.parametrize(
    ("path", "source"),
    [
        ("a.py", "# Nobody knows.\n"),
        ("a.py", '"""The rule in force."""\n'),
        ("a.py", 'def f(x):\n    raise ValueError(f"{x} is told")\n'),
        ("a.py", "async def test_whom_it_asks():\n    pass\n"),
        ("tests/test_a.py", '"""Whoever asks."""\n'),
        ("a.md", "A line.\n\nHe reads `code`.\n"),
        ("a.html", "<p>It has begun.</p>\n"),
        ("a.cpp", "int a; // anew\n"),
        ("a.css", "a {} /* one\n beside the other */\n"),
        ("a.toml", 'a = 1 # his\nb = "c"\n'),
    ],
)
def test_a_refused_word_in_prose_is_reported(path: str, source: str) -> None:
    assert len(problems_of(path, source)) == 1


@pytest.mark.parametrize(
    ("path", "source"),
    [
        ("a.py", "told = active = 1\n"),
        ("tests/test_a.py", 'PROMPT = "The king told his son."\n'),
        ("a.md", "Set `told` so:\n\n```python\nwhom = 1\n```\n"),
        ("a.cpp", 'const char* told = "told";\n'),
        ("a.safetensors", "whom"),
    ],
)
def test_identifiers_code_and_test_data_are_no_prose(path: str, source: str) -> None:
    assert problems_of(path, source) == []


def test_a_problem_names_the_file_the_line_and_the_word() -> None:
    assert problems_of("a.md", "one\n\nof Whom\n") == ["a.md:3: whom: of Whom"]


def test_the_allow_list_is_short_and_every_entry_is_needed() -> None:
    assert len(ALLOWED) <= 20
    for path, phrase in ALLOWED:
        assert phrase in Path(path).read_text(encoding="utf-8")


def test_the_lint_passes_over_its_own_folder(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["tests/lint"]) == 0
    assert capsys.readouterr().out == ""
