"""The width of the terminal that standard output goes to, and sentences broken to it."""

import shutil
import sys
import textwrap


def terminal_columns() -> int | None:
    """Return how many characters a line of the terminal has; None without one: programs read whole lines."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


def broken(text: str) -> str:
    """Return `text` with its lines broken at words to the width of the terminal, further ones indented by two more."""
    columns = terminal_columns()
    if columns is None:
        return text
    return "\n".join(_broken_line(line, max(columns, 20)) for line in text.split("\n"))


def _broken_line(line: str, columns: int) -> str:
    indent = line[: len(line) - len(line.lstrip(" "))]
    more = f"{indent}  "
    wrapped = textwrap.wrap(
        line, columns, subsequent_indent=more, break_long_words=False, break_on_hyphens=False, drop_whitespace=True
    )
    return "\n".join(wrapped) if len(line) > columns else line
