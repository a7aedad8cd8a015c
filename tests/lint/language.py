"""A lint of the project's prose: it refuses words that do not belong in plain technical English.

`python -m tests.lint.language PATH ...` prints `file:line: word: the line` for each hit; with hits it exits with 1.
Prose is: comments, docstrings and string literals of Python; names of test functions; Markdown outside code; HTML
templates; comments of C++, JavaScript, CSS, TOML, YAML, shell and Make. In `tests/` only docstrings count among the
string literals: the others are test data, such as prompts.
"""

import ast
import io
import re
import subprocess
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path

WORDS = re.compile(
    r"\b(whoever|whom|anew|beside|told|begun|nobody|sloth|he|him|his|in force)\b",
    re.IGNORECASE,
)

# Exceptions: a file and a phrase of the line. At most 20; the test refuses stale ones.
ALLOWED: tuple[tuple[str, str], ...] = (
    # A reason in audit rows.
    ("quality/rollout/rollout.py", "it was begun"),
    # Lists of stop words and question words.
    ("classifier/features/surface_features.py", "what who whom"),
    ("classifier/features/follow_up_model.py", "theirs he she his her him"),
    # The name of an event in audit rows.
    ("gateway/operations/dashboard/sign_in/login.py", "session.begun"),
    ("gateway/operations/dashboard/sign_in/login_limit.py", "session.begun"),
)

# Applied migrations are history. The lint and its test name the words.
EXEMPT = ("migrations/versions/", "tests/lint/")

# A string of one identifier: a name of something, such as a column.
_KEY = re.compile(r"[\"']\w+[\"']")
# Code within a line: a name in backticks, and an expression of a Python f-string.
_CODE_SPAN = re.compile(r"`[^`\n]*`")
_PYTHON_CODE = re.compile(r"`[^`\n]*`|\{[^{}\n]*\}")
_SLASH_COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)
_HASH_COMMENT = re.compile(r"#[^\n]*")
_MARKDOWN_BLOCK = re.compile(r"^ *(```|~~~).*?^ *\1", re.DOTALL | re.MULTILINE)
_COMMENTS = {
    **dict.fromkeys((".cpp", ".h", ".cu", ".js", ".mjs", ".css"), _SLASH_COMMENT),
    **dict.fromkeys((".toml", ".yaml", ".yml", ".tpl", ".sh", "Makefile", "Dockerfile"), _HASH_COMMENT),
}

Lines = Iterator[tuple[int, str]]


def _numbered(text: str, first: int) -> Lines:
    yield from enumerate(text.split("\n"), first)


def _docstring_lines(tree: ast.Module) -> set[int]:
    """Return the first line number of every docstring."""
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    nodes = (node for node in ast.walk(tree) if isinstance(node, documented) and ast.get_docstring(node) is not None)
    return {node.body[0].lineno for node in nodes}


def _python_prose(source: str, *, is_test: bool) -> Lines:
    docstrings = _docstring_lines(ast.parse(source)) if is_test else set()
    previous = ""
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        kind, line = tokenize.tok_name[token.type], token.start[0]
        is_string = kind in {"STRING", "FSTRING_MIDDLE"} and not _KEY.fullmatch(token.string)
        if kind == "COMMENT" or (is_string and (not is_test or line in docstrings)):
            yield from _numbered(token.string, line)
        elif kind == "NAME" and previous == "def" and token.string.startswith("test_"):
            yield line, token.string.replace("_", " ")
        previous = token.string


def _comments(source: str, pattern: re.Pattern[str]) -> Lines:
    for found in pattern.finditer(source):
        yield from _numbered(found[0], source.count("\n", 0, found.start()) + 1)


def _without_blocks(source: str) -> str:
    """Empty every code block of a Markdown text; line numbers stay."""
    return _MARKDOWN_BLOCK.sub(lambda found: "\n" * found[0].count("\n"), source)


def prose_of(path: str, source: str) -> Lines:
    """Yield the lines of prose of one file with their numbers; an unknown kind of file has none."""
    name = Path(path).name
    kind = Path(path).suffix or name
    if kind == ".py":
        is_test = path.startswith("tests/")
        yield from _python_prose(source, is_test=is_test)
    elif kind == ".md":
        yield from _numbered(_without_blocks(source), 1)
    elif kind == ".html":
        yield from _numbered(source, 1)
    elif kind in _COMMENTS:
        yield from _comments(source, _COMMENTS[kind])


def problems_of(path: str, source: str) -> list[str]:
    """Return one line for every refused word of a file, as `file:line: word: the line`."""
    # Most files have none of the words; to find the prose of a file takes a hundred times as long as to search it.
    if not WORDS.search(source.replace("_", " ")):
        return []
    code = _PYTHON_CODE if path.endswith(".py") else _CODE_SPAN
    allowed = [phrase for file, phrase in ALLOWED if file == path]
    return [
        f"{path}:{number}: {word[0].lower()}: {line.strip()}"
        for number, line in prose_of(path, source)
        if not any(phrase in line for phrase in allowed)
        for word in WORDS.finditer(code.sub("", line))
    ]


def tracked_files(paths: list[str]) -> list[str]:
    """Return the files under `paths` that git tracks or would track, without the exempt ones."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "--", *paths]
    names = subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()
    return [name for name in names if not name.startswith(EXEMPT) and Path(name).is_file()]


def main(paths: list[str]) -> int:
    found = [
        problem
        for name in tracked_files(paths)
        if Path(name).suffix in {".py", ".md", ".html", *_COMMENTS} or Path(name).name in _COMMENTS
        for problem in problems_of(name, Path(name).read_text(encoding="utf-8"))
    ]
    sys.stdout.write("".join(f"{problem}\n" for problem in found))
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:] or ["."]))
