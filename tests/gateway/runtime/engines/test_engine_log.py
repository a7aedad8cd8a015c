"""The collected output of an engine."""

from pathlib import Path

from gateway.runtime.engines.engine_child import LONGEST_LINE, EngineLog


def test_the_log_is_cut_at_its_bound_and_keeps_the_end(tmp_path: Path) -> None:
    log = EngineLog(tmp_path / "engine.log", max_bytes=1000)
    for number in range(500):
        log.write(f"line {number}\n".encode())
    log.close()
    files = sorted(tmp_path.iterdir())
    assert [file.name for file in files] == ["engine.log", "engine.log.1"]
    assert all(file.stat().st_size <= 1000 for file in files)
    assert files[0].read_text().endswith("line 499\n")


def test_last_lines_are_whole_and_printable_whatever_the_pieces(tmp_path: Path) -> None:
    log = EngineLog(tmp_path / "engine.log")
    for byte in b"\x1b[31mred\x1b[0m\nhalf \xc3\xa9\x07 bell\r50%\r" + b"y" * 3000 + b"\nno end":
        log.write(bytes([byte]))
    *lines, long, last = log.last_lines()
    assert lines == ["red", "half é� bell", "50%"]
    assert len(long) == LONGEST_LINE
    assert last == "no end"


def test_a_folder_that_cannot_be_written_loses_the_log_and_nothing_else(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    log = EngineLog(tmp_path / "file" / "engine.log")
    log.write(b"still here\n")
    assert log.last_lines() == ["still here"]
