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


@pytest.mark.parametrize("name", sorted(TEMPLATES))
def test_every_cell_but_a_rows_first_names_its_column_where_the_headers_are_hidden(name: str) -> None:
    assert set(re.findall(r"<table[^>]*>", TEMPLATES[name])) <= {
        '<table class="stacked">',
        '<table class="stacked cards">',
        '<table class="stacked changes">',
        '<table class="stacked timeline">',
    }
    # Without what Jinja replaces, a cell that begins its row stands next to the row's tag.
    plain = re.sub(r"\{[%#].*?[%#]\}|\s+(?=<)", "", TEMPLATES[name])
    assert [cell for cell in re.findall(r"(?<!<tr>)<td(?=[ >])[^>]*>", plain) if "data-head=" not in cell] == []
