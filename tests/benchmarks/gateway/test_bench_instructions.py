"""Counting instructions says what is missing."""

import asyncio
from pathlib import Path

import pytest

from benchmarks.gateway.instructions import ValgrindError, instructions_per_request


def test_without_valgrind_the_command_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ValgrindError, match="apt-get install valgrind"):
        asyncio.run(instructions_per_request(tmp_path, stream=False, warm=1, requests=1))
