"""Packed JSON: read as it was written, small for what nearly all rows say, and JSON of earlier releases is read too."""

from concurrent.futures import ThreadPoolExecutor

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from migrations.tables.columns import pack, unpack
from quality.records.record import Attempt
from tests.quality.store.records import make_record


@given(st.recursive(st.none() | st.text() | st.floats(allow_nan=False), st.lists))
def test_what_was_packed_is_unpacked(value: object) -> None:
    json = msgspec.json.encode([value])
    assert unpack(pack(json)) == json


def test_an_ordinary_decision_and_its_attempts_take_a_fraction_of_their_json() -> None:
    attempt = Attempt(tier=1, model="m", status="ok", cost_usd=0.25, prompt_tokens=3, completion_tokens=4)
    for value, share in ((make_record().decision, 0.25), ([attempt], 0.15)):
        json = msgspec.json.encode(value)
        assert len(pack(json)) < share * len(json)


@pytest.mark.parametrize("stored", ['{"a":1}', b'{"a":1}', "[]", b"[]"])
def test_json_that_was_stored_plain_is_read(stored: bytes | str) -> None:
    assert unpack(stored) == (stored.encode() if isinstance(stored, str) else stored)


@pytest.mark.parametrize("code", [1, 3])
def test_a_value_of_another_release_is_an_error_that_names_its_first_byte(code: int) -> None:
    with pytest.raises(ValueError, match=rf"begins with b'\\x0{code}': another release"):
        unpack(bytes([code]) + b"abc")


@pytest.mark.parametrize(
    "stored",
    [
        "0228b52ffd6082005d0100186d35300c000bd783e94103e9c0002a800412088b5320f400166c1908145c3cc002a17c1084373f908656",
    ],
)
def test_values_that_are_stored_are_read_for_ever(stored: str) -> None:
    """The dictionaries never change: these bytes were stored with them."""
    [attempt] = msgspec.json.decode(unpack(bytes.fromhex(stored)), type=list[Attempt])
    assert attempt == Attempt(tier=2, model="m", status="ok", cost_usd=0.5)


def test_several_threads_pack_at_once() -> None:
    values = [msgspec.json.encode([{"tier": number % 7, "reason": f"{number}" * 40}]) for number in range(400)]
    with ThreadPoolExecutor(8) as threads:
        assert list(threads.map(unpack, threads.map(pack, values))) == values
