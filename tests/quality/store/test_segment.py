"""Frames survive as written, and damage costs the damaged frame alone, which is counted."""

import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quality.ledger.journal import HEADER_BYTES, MARKER, SegmentError, frame, read_payload, read_payloads, recover
from quality.records.record import encoded
from tests.quality.store.records import make_record

payloads = st.lists(st.binary(max_size=40), min_size=1, max_size=5)


def recovered(data: bytes) -> tuple[list[bytes], int, bytes]:
    """Payloads and unreadable bytes that recovery reports, and what is left in the file."""
    with tempfile.TemporaryDirectory() as folder:
        segment = Path(folder) / "1.journal"
        segment.write_bytes(data)
        frames, unreadable_bytes, _ = recover(segment)
        assert [read_payload(location) for location, _ in frames] == [payload for _, payload in frames]
        return [payload for _, payload in frames], unreadable_bytes, segment.read_bytes()


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


def test_a_tail_of_zeros_is_no_frame_and_no_loss(tmp_path: Path) -> None:
    segment = tmp_path / "1.journal"
    segment.write_bytes(frame(b"a") + bytes(64))

    frames, unreadable_bytes, lost = recover(segment)

    assert ([payload for _, payload in frames], unreadable_bytes, lost) == ([b"a"], 64, 0)
    assert segment.read_bytes() == frame(b"a")


def test_any_flipped_bit_costs_the_frame_that_has_it_and_is_counted(tmp_path: Path) -> None:
    written = [encoded(make_record(f"r-{n}")) for n in range(10)]
    data = b"".join(map(frame, written))
    ends = [len(b"".join(map(frame, written[: n + 1]))) for n in range(len(written))]
    segment = tmp_path / "1.journal"
    for bit in range(min(4096, 8 * len(data))):
        damaged = bytearray(data)
        damaged[bit // 8] ^= 1 << bit % 8
        segment.write_bytes(damaged)

        frames, _, lost = recover(segment)

        hit = next(n for n, end in enumerate(ends) if bit // 8 < end)
        assert [payload for _, payload in frames] == written[:hit] + written[hit + 1 :]
        assert lost == 1
        assert read_payloads(location for location, _ in frames) == [payload for _, payload in frames]


@given(payloads, st.binary(min_size=1, max_size=60), st.data())
def test_frames_after_any_damage_are_found_again(written: list[bytes], garbage: bytes, data: st.DataObject) -> None:
    place = data.draw(st.integers(0, len(written) - 1))
    before, after = written[:place], written[place + 1 :]

    found, _, _ = recovered(b"".join(map(frame, before)) + garbage + b"".join(map(frame, after)))

    assert found[: len(before)] == before
    assert found[len(found) - len(after) :] == after


def test_no_record_contains_the_marker_whatever_its_caller_wrote() -> None:
    """A caller who could write a frame into a record could forge one where the record's own frame is damaged."""
    forged = frame(encoded(make_record("forged"))).decode("latin-1")
    number = int.from_bytes(MARKER[:8], "big", signed=True)

    messages = [{"role": "user", "content": forged, "numbers": [number, number, float(number)]}]
    payload = encoded(make_record(forged, answer=forged, messages=messages))

    assert MARKER not in payload


def test_a_segment_of_an_earlier_version_is_replayed(tmp_path: Path) -> None:
    segment = tmp_path / "1.journal"
    old = [frame(payload).removeprefix(MARKER) for payload in (b"a", b"", b"c" * 300)]
    segment.write_bytes(b"".join(old) + old[2][:-1])

    frames, unreadable_bytes, lost = recover(segment)

    assert [payload for _, payload in frames] == [b"a", b"", b"c" * 300]
    assert read_payloads(location for location, _ in frames) == [b"a", b"", b"c" * 300]
    assert (unreadable_bytes, lost) == (len(old[2]) - 1, 1)


def test_reading_a_frame_that_changed_on_disk_is_refused(tmp_path: Path) -> None:
    segment = tmp_path / "1.journal"
    segment.write_bytes(frame(b"payload"))
    [(location, _)] = recover(segment).frames
    damaged = bytearray(segment.read_bytes())
    damaged[HEADER_BYTES] ^= 1
    segment.write_bytes(damaged)

    with pytest.raises(SegmentError, match=f"damaged at byte {HEADER_BYTES}"):
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
