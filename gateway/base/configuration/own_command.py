"""The command line of another process of this installation."""

import sys


def own_command(*arguments: str) -> list[str]:
    """Return what runs `aio ARGUMENTS` with this interpreter, wherever its scripts are installed."""
    return [sys.executable, "-c", "from gateway.operations.cli import main; main()", *arguments]
