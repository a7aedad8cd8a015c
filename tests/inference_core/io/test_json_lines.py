"""JSON lines as people write them: marks and empty lines are no rows, and what is wrong is said with its line."""

import gzip
from pathlib import Path

import pytest

from inference_core.io.json_lines import json_lines

MARK = b"\xef\xbb\xbf"


@pytest.mark.parametrize("name", ["rows.jsonl", "rows.jsonl.gz"])
def test_rows_come_with_their_lines(name: str, tmp_path: Path) -> None:
    file = tmp_path / name
    text = MARK + b"[1]\n\n \r\n[2]"
    file.write_bytes(gzip.compress(text) if file.suffix == ".gz" else text)
    assert list(json_lines(file, list[int], ValueError)) == [(f"{file}, line 1", [1]), (f"{file}, line 4", [2])]


@pytest.mark.parametrize("line", [MARK + b"[2]", b"[", b"[true]", b'["\xe9"]', b"[" * 100_000])
def test_a_line_that_is_no_row_is_named(line: bytes, tmp_path: Path) -> None:
    file = tmp_path / "rows"
    file.write_bytes(b"[1]\n" + line)
    rows = json_lines(file, list[int], LookupError, "; rows are numbers")
    next(rows)
    with pytest.raises(LookupError, match=r"rows, line 2: .*; rows are numbers"):
        next(rows)


@pytest.mark.parametrize(("name", "why"), [("none", "No such file"), ("cut.gz", "ended before"), ("no.gz", "Not a gz")])
def test_a_file_that_cannot_be_read_is_named(name: str, why: str, tmp_path: Path) -> None:
    (tmp_path / "cut.gz").write_bytes(gzip.compress(b"[1]")[:-4])
    (tmp_path / "no.gz").write_bytes(b"[1]")
    with pytest.raises(LookupError, match=f"{name} cannot be read: .*{why}"):
        list(json_lines(tmp_path / name, list[int], LookupError))
