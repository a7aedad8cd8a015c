"""The lines of docs/clients.md that set up a client: its test runs these, so that the page says nothing else."""

import re
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs" / "clients.md"
BASE_URL = "http://127.0.0.1:8080"
_BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.DOTALL | re.MULTILINE)


def documented_lines(language: str, containing: str, url: str) -> str:
    """The one block of the page in this language with that text, for the gateway at `url`."""
    blocks = [block for name, block in _BLOCK.findall(PAGE.read_text("utf-8")) if name == language]
    (lines,) = [block for block in blocks if containing in block]
    assert BASE_URL in lines
    return lines.replace(BASE_URL, url)
