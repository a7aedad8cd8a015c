"""Frames survive as written, and no crash or disk error at the tail costs an earlier frame."""

import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quality.ledger.journal import HEADER_BYTES, SegmentError, frame, read_payload, read_payloads, recover

payloads = st.lists(st.binary(max_size=40), min_size=1, max_size=5)


def recovered(data: bytes) -> tuple[list[bytes], int, bytes]:
    """Payloads and torn bytes that recovery reports, and what is left in the file."""
    with tempfile.TemporaryDirectory() as folder:
        segment = Path(folder) / "1.journal"
        segment.write_bytes(data)
        frames, torn = recover(segment)
        assert [read_payload(location) for location, _ in frames] == [payload for _, payload in frames]
        return [payload for _, payload in frames], torn, segment.read_bytes()


@given(payloads)
def test_whole_frames_come_back_in_order(written: list[bytes]) -> None:
    data = b"".join(map(frame, written))

    assert recovered(data) == (written, 0, data)


@given(payloads)
def test_a_tail_torn_at_any_byte_is_cut_and_costs_only_its_own_frame(written: list[bytes]) -> None:
    whole = b"".join(map(frame, written[:-1]))
    last = frame(written[-1])
    for kept in range(len(last)):
        assert recovered(whole + last[:kept]) == (written[:-1], kept, whole)


@given(payloads, st.data())
def test_a_changed_byte_of_the_last_frame_is_detected(written: list[bytes], data: st.DataObject) -> None:
    whole = b"".join(map(frame, written[:-1]))
    last = bytearray(frame(written[-1]))
    position = data.draw(st.integers(0, len(last) - 1))
    last[position] ^= data.draw(st.integers(1, 255))

    assert recovered(whole + bytes(last))[0] == written[:-1]


def test_a_tail_of_zeros_is_no_frame() -> None:
    assert recovered(frame(b"a") + bytes(64)) == ([b"a"], 64, frame(b"a"))


def test_reading_a_frame_that_changed_on_disk_is_refused(tmp_path: Path) -> None:
    segment = tmp_path / "1.journal"
    segment.write_bytes(frame(b"payload"))
    [(location, _)] = recover(segment).frames
    damaged = bytearray(segment.read_bytes())
    damaged[HEADER_BYTES] ^= 1
    segment.write_bytes(damaged)

    with pytest.raises(SegmentError, match="damaged at byte 8"):
        read_payload(location)


def test_reading_from_a_deleted_segment_raises_an_error(tmp_path: Path) -> None:
    segment = tmp_path / "1.journal"
    segment.write_bytes(frame(b"payload"))
    [(location, _)] = recover(segment).frames
    segment.unlink()

    with pytest.raises(SegmentError, match="deleted by another program"):
        read_payload(location)


def test_neighbours_of_one_segment_are_read_with_one_opening(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    locations = []
    for name in ("1.journal", "2.journal"):
        (tmp_path / name).write_bytes(frame(b"one") + frame(b"two"))
        locations += [location for location, _ in recover(tmp_path / name).frames]
    opened: list[str] = []
    opening = Path.open

    def counted(path: Path, *how: Any, **more: Any) -> Any:
        opened.append(path.name)
        return opening(path, *how, **more)

    monkeypatch.setattr(Path, "open", counted)

    assert read_payloads(locations) == [b"one", b"two", b"one", b"two"]
    assert opened == ["1.journal", "2.journal"]
