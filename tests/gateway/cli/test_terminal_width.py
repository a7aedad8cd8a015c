"""On a terminal, help, tables and sentences are as wide as the terminal; programs read whole lines."""

import fcntl
import os
import pty
import struct
import subprocess
import sys
import termios
from pathlib import Path

import pytest

from gateway.base import terminal
from gateway.cli import options

_AIO = [sys.executable, "-c", "from gateway.cli import main; main()"]


def lines_on_terminal(columns: int, *words: str) -> list[str]:
    """What a command prints on a terminal of so many columns."""
    leader, follower = pty.openpty()
    fcntl.ioctl(follower, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    environment = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES")}
    process = subprocess.Popen([*_AIO, *words], stdin=follower, stdout=follower, stderr=follower, env=environment)
    os.close(follower)
    printed = b""
    while True:
        try:
            part = os.read(leader, 65536)
        except OSError:  # the other end is closed
            break
        if not part:
            break
        printed += part
    assert process.wait(60) == 0, printed.decode()
    os.close(leader)
    return printed.decode().replace("\r\n", "\n").splitlines()


@pytest.mark.parametrize("columns", [60, 110])
def test_help_is_as_wide_as_the_terminal(columns: int) -> None:
    longest = max(map(len, lines_on_terminal(columns, "keys", "create", "--help")))
    assert columns - 25 < longest <= columns


def test_a_table_is_no_wider_than_the_terminal() -> None:
    words = [word for line in lines_on_terminal(70, "settings") for word in line.split()]
    assert max(map(len, lines_on_terminal(70, "settings"))) <= 70
    whole = subprocess.run([*_AIO, "settings"], capture_output=True, text=True, check=True).stdout
    assert max(map(len, whole.splitlines())) > 120
    assert sorted("".join(words)) == sorted("".join(whole.split())), "nothing is lost"


def test_columns_are_narrowed_from_the_widest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(options, "terminal_columns", lambda: 24)
    shown = options.table(["name", "what it is"], [["ada", "one two three four five six"]])
    assert shown == "name  what it is\nada   one two three four\n      five six"


def test_a_sentence_is_broken_at_words_with_its_indentation(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(terminal, "terminal_columns", lambda: 20)
    assert terminal.broken("short\n  database: one two three") == "short\n  database: one two\n    three"
    monkeypatch.setattr(terminal, "terminal_columns", lambda: None)
    assert terminal.broken("x" * 50) == "x" * 50


def test_the_width_is_not_known_where_output_is_no_terminal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    with (tmp_path / "out").open("w") as file:
        monkeypatch.setattr(sys, "stdout", file)
        assert terminal.terminal_columns() is None
