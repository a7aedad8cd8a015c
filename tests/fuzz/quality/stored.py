"""What is read back from disks, Redis and other processes: journal segments, records, kept answers."""

import msgspec

from gateway.inference.response_cache import _decode as decode_kept_answer
from gateway.inference.shared_generation import KeptAnswer
from gateway.telemetry.service_levels import LevelsByTier
from inference_core.io.files import JSON_ERRORS
from quality.ledger.journal import (
    HEADER_BYTES,
    MARKER,
    Location,
    SegmentError,
    frame,
    read_payload,
    read_payloads,
    recover,
)
from quality.records.record import EmbeddingRecord, decoded, encoded
from tests.fuzz.scratch import scratch_folder
from tests.hostile.target import fuzz_target
from tests.quality.store.records import make_record
from tiers.tier import Delta, Usage

_PAYLOADS = [b"", b"a", b"b" * 300, bytes(64)]


@fuzz_target(
    [
        b"".join(map(frame, _PAYLOADS)),
        frame(b"a") + b"damaged" + frame(b"b"),
        frame(b"a").removeprefix(MARKER) + bytes(40),
        frame(b"x")[:-1],
        b"",
    ],
    [frame(b""), frame(b"a"), bytes(8), MARKER],
)
def journal_segments(data: bytes) -> str:
    """Whole frames in their order; what is not one is left out, counted, and cut off behind the last."""
    path = scratch_folder("journal") / "a.journal"
    path.write_bytes(data)
    found = recover(path)
    payloads = [payload for _, payload in found.frames]
    assert read_payloads(location for location, _ in found.frames) == payloads
    assert found.lost <= found.unreadable_bytes
    again = recover(path)
    assert again.frames == found.frames
    assert again.unreadable_bytes <= found.unreadable_bytes
    return f"{min(len(found.frames), 3)} frames, {min(found.lost, 3)} lost"


@fuzz_target([frame(b"abc"), frame(b"abc")[:-1], b""], [frame(b"abc")])
def journal_payloads(data: bytes) -> str:
    """A payload whose file another program changed is refused."""
    path = scratch_folder("journal") / "b.journal"
    path.write_bytes(data)
    try:
        return f"read {len(read_payload(Location(path, HEADER_BYTES, 3)))}"
    except SegmentError:
        return "refused"


_KEPT = KeptAnswer(
    tier=1,
    p_ok=0.5,
    attempts=[],
    usage=Usage(prompt_tokens=1, completion_tokens=2),
    pieces=[Delta(text="a"), Delta(finish_reason="stop")],
)


@fuzz_target(
    [msgspec.msgpack.encode(_KEPT)],
    [b"\xa4tier", b"\xa6pieces", b"\xa1\xff", b"\xdd\xff\xff\xff\xff", b"\xc0", b"\x91" * 50],
)
def kept_answers(data: bytes) -> str:
    """An answer, written again as it is, or an error that the cache knows."""
    try:
        kept = decode_kept_answer(data)
    except JSON_ERRORS:
        return "refused"
    assert repr(decode_kept_answer(msgspec.msgpack.encode(kept))) == repr(kept)
    return f"{min(len(kept.pieces), 3)} pieces"


_EMBEDDING = EmbeddingRecord(
    request_id="a",
    created_at=1.5,
    requested_model="m",
    key_id=None,
    status="ok",
    http_status=200,
    error=None,
    model="m",
    prompt_tokens=1,
    cost_usd=0.1,
    e2e_ms=1.0,
    overhead_ms=0.5,
)


@fuzz_target(
    [encoded(make_record()), encoded(_EMBEDDING)], [b"\xa3api", b"\xa9embedding", b"\xa1\xff", b"\xc0", b"\xcb"]
)
def records(data: bytes) -> str:
    """A record of a request, written again as it is, or refused."""
    try:
        record = decoded(data)
    except JSON_ERRORS:
        return "refused"
    assert repr(decoded(encoded(record))) == repr(record)
    return type(record).__name__


@fuzz_target([msgspec.msgpack.encode({1: {}}), msgspec.msgpack.encode({})], [b"\x81", b"\xc0", b"\xa1\xff"])
def peers_figures(data: bytes) -> str:
    """Figures of another worker, or refused."""
    try:
        return f"{min(len(msgspec.msgpack.decode(data, type=LevelsByTier)), 3)} tiers"
    except JSON_ERRORS:
        return "refused"
