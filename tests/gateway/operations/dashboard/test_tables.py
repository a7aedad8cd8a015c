"""Every table of a page can be read aloud and on a phone: its headers say what they head, and so do its cells."""

import re
from importlib.resources import files

import pytest

TEMPLATES = {
    entry.name: entry.read_text()
    for entry in files("gateway.operations.dashboard").joinpath("templates").iterdir()
    if "<table" in entry.read_text()
}


@pytest.mark.parametrize("name", sorted(TEMPLATES))
def test_every_header_says_what_it_heads(name: str) -> None:
    headers = re.findall(r"<th(?=[ >])[^>]*>", TEMPLATES[name])
    assert [header for header in headers if not re.search(r'scope="(col|row)"', header)] == []
