"""JSON is measured as a reader sees it, brackets and numbers in its strings apart, and cheaply where it is ordinary."""

import json
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from classifier.native import KERNELS
from gateway.inference.api import json_bounds
from gateway.inference.api.json_bounds import MAX_CONTAINERS, MAX_DEPTH, MAX_EXPONENTS, MAX_FIELDS, json_excess

TEXT = st.text(alphabet=st.sampled_from('[]{}"\\:e19 ,x\u00e9'), max_size=12)
VALUES = st.recursive(
    st.one_of(TEXT, st.none(), st.integers(), st.floats(allow_nan=False, allow_infinity=False)),
    lambda inner: st.one_of(st.lists(inner, max_size=5), st.dictionaries(TEXT, inner, max_size=5)),
    max_leaves=30,
)


@pytest.fixture(scope="module", autouse=True, params=["kernels", "numpy"])
def read_by(request: pytest.FixtureRequest) -> Iterator[None]:
    """Each test with the kernel and without."""
    if request.param == "kernels" and json_bounds.KERNELS is None:
        pytest.skip("the kernels were not built")
    with pytest.MonkeyPatch.context() as patch:
        if request.param == "numpy":
            patch.setattr(json_bounds, "KERNELS", None)
        yield


def depth(value: Any) -> int:
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else None
    return 0 if inner is None else 1 + max(map(depth, inner), default=0)


def containers(value: Any) -> int:
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else None
    return 0 if inner is None else 1 + sum(map(containers, inner))


@given(value=VALUES, most_deep=st.integers(1, 4), more=st.integers(0, 11), spaces=st.booleans())
def test_what_is_counted_is_what_a_reader_makes(value: Any, most_deep: int, more: int, spaces: bool) -> None:
    # As in the product, no fewer containers than levels: a text with fewer brackets than levels is not read.
    most = most_deep + more
    text = json.dumps(value, ensure_ascii=False, indent=1 if spaces else None).encode()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(json_bounds, "MAX_DEPTH", most_deep)
        patch.setattr(json_bounds, "MAX_CONTAINERS", most)
        patch.setattr(json_bounds, "_PIECE", 3)
        found = json_excess(text)
    allowed = {None}
    if depth(value) > most_deep or containers(value) > most:
        allowed = {"depth"} if containers(value) <= most else {"depth", "containers"}
        allowed = {"containers"} if depth(value) <= most_deep else allowed
    assert found in allowed


@given(
    values=st.lists(st.one_of(VALUES, st.integers(10**14, 10**40), st.sampled_from([1e300, 1.5e-300])), max_size=8),
    size=st.integers(1, 40),
)
def test_where_a_text_is_cut_into_pieces_changes_nothing(values: list[Any], size: int) -> None:
    text = json.dumps(values).encode()
    with pytest.MonkeyPatch.context() as patch:
        for name, most in {"MAX_FIELDS": 3, "MAX_EXPONENTS": 1, "MAX_LONG_DIGITS": 20, "MAX_CONTAINERS": 6}.items():
            patch.setattr(json_bounds, name, most)
        patch.setattr(json_bounds, "_SHORT", 0)
        whole = json_excess(text)
        patch.setattr(json_bounds, "_PIECE", size)
        found = json_excess(text)
    # Fields and numbers may both be too many; then either is named.
    values_too = {"fields", "numbers"}
    assert found == whole or {found, whole} == values_too


PIECES = [b'"a[\\":"', b'"\\\\"', b'"' + b"x" * 40 + b'\\\\\\":' + b"1e5" * 9 + b'"', b'""']
PIECES += [b"[", b"}", b":", b"1e5", b"1.E", b"9" * 20, b"x", b"\xff"]


@given(st.lists(st.sampled_from(PIECES)).map(b"".join), st.sampled_from([b" ", b'"[', b'"\\']))
def test_the_kernel_counts_what_numpy_does(text: bytes, end: bytes) -> None:
    bounds = {"MAX_DEPTH": 2, "MAX_CONTAINERS": 1 << 30, "MAX_FIELDS": 2, "MAX_EXPONENTS": 1, "MAX_LONG_DIGITS": 20}
    found = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(json_bounds, "_SHORT", 0)
        for name, most in bounds.items():
            patch.setattr(json_bounds, name, most)
        for kernels in (KERNELS, None):
            patch.setattr(json_bounds, "KERNELS", kernels)
            found.append(json_excess(text + end))
    assert found[0] == found[1] or set(found) == {"fields", "numbers"}


@pytest.mark.parametrize("levels", [MAX_DEPTH - 1, MAX_DEPTH])
def test_as_many_levels_as_allowed_are_let_through(levels: int) -> None:
    assert json_excess(b"[" * levels + b"]" * levels) is None
    assert json_excess(b'{"a":' * levels + b"1" + b"}" * levels) is None


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (b"[" * (MAX_DEPTH + 1), "depth"),
        (b'["\\\\",' + b"[" * MAX_DEPTH, "depth"),
        (b"[" + b"[]," * MAX_CONTAINERS + b"[]]", "containers"),
        (b"{" + b'"a":1,' * MAX_FIELDS + b'"a":1}', "fields"),
        (b"[" + b"1e300," * 6000 + b"1]", "numbers"),
        (b"[" + b"1.E-300," * 6000 + b"1]", "numbers"),
        (b"[" + (b"9" * 300 + b",") * 1000 + b"1]", "numbers"),
    ],
    ids=["arrays", "behind an escape", "containers", "fields", "exponents", "negative exponents", "long integers"],
)
def test_each_bound_is_named(text: bytes, expected: str) -> None:
    assert json_excess(text) == expected


@pytest.mark.parametrize("inner", ["[" * 100_000, "1e300," * 20_000, '":' * 70_000, "9" * 1_000_000, '\\"[' * 50_000])
def test_what_stands_in_a_string_does_not_count(inner: str) -> None:
    text = msgspec.json.encode({"a": inner, "b": [[1.5, 2]]})
    assert json_excess(text) is None
    assert json_excess(text[:-2]) is None


def test_many_token_ids_are_ordinary() -> None:
    assert json_excess(msgspec.json.encode({"prompt": [list(range(49_000)) for _ in range(12)]})) is None


def test_an_exponent_costs_no_more_than_the_bound_allows() -> None:
    text = b"[" + b"1e300," * (MAX_EXPONENTS - 1) + b"1]"
    assert json_excess(text) is None
    assert len(msgspec.json.decode(text)) == MAX_EXPONENTS
