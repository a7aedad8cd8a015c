"""The name of a block covers all that its keys and values depend on (SPEC KV-05)."""

import hypothesis.strategies as st
import pytest
from hypothesis import given

from inference_core.kv_cache import prefix_hash
from inference_core.kv_cache.prefix_hash import DIGEST_BYTES, chain_digests, hashed_chain, root_digest


def chain(salt: str, blocks: list[list[int]]) -> bytes:
    tokens = [token for block in blocks for token in block]
    return [root_digest(salt), *chain_digests(root_digest(salt), tokens, 0, len(blocks), 2)][-1]


chains = st.tuples(
    st.sampled_from(["", "a", "b"]),
    st.lists(st.lists(st.integers(0, 3), min_size=2, max_size=2), max_size=3),
)


@given(chains, chains)
def test_chains_are_equal_exactly_when_salt_and_all_tokens_are(
    a: tuple[str, list[list[int]]], b: tuple[str, list[list[int]]]
) -> None:
    assert (chain(*a) == chain(*b)) == (a == b)


def test_digests_have_128_bits_and_do_not_change_between_runs() -> None:
    """A persisted or shared cache may rely on the names."""
    digest = chain("tenant", [[1, 2], [3, 70_000]])
    assert len(digest) == DIGEST_BYTES == 16
    assert digest == chain("tenant", [[1, 2], [3, 70_000]])


token_ids = st.integers(0, 2**32 - 1)


@pytest.mark.skipif(prefix_hash._native is None, reason="the native extension was not built")
@given(
    tokens=st.lists(token_ids, max_size=150),
    block_size=st.sampled_from([1, 4, 16, 27, 28, 29, 60, 61]),
    parent=st.binary(min_size=16, max_size=16),
    data=st.data(),
)
def test_the_native_chain_is_the_one_of_hashlib(
    tokens: list[int], block_size: int, parent: bytes, data: st.DataObject
) -> None:
    """BLAKE2b over messages around one and two of its own 128-byte blocks, from any block of the list on."""
    first = data.draw(st.integers(0, len(tokens) // block_size))
    count = data.draw(st.integers(0, len(tokens) // block_size - first))
    native = prefix_hash._native
    assert native is not None
    assert native(parent, tokens, first, count, block_size) == hashed_chain(parent, tokens, first, count, block_size)


@pytest.mark.parametrize("token", [-1, 2**32])
def test_what_is_no_token_id_has_no_name(token: int) -> None:
    with pytest.raises(OverflowError):
        chain_digests(root_digest(""), [token], 0, 1, 1)


@pytest.mark.skipif(prefix_hash._native is None, reason="the native extension was not built")
def test_the_native_chain_refuses_blocks_that_are_not_there() -> None:
    """Reading past the list would read past memory."""
    native = prefix_hash._native
    assert native is not None
    for first, count, size in [
        (0, 2, 16),
        (2, 1, 16),
        (-1, 1, 16),
        (0, 1, 0),
        (0, 1, -1),
        (0, 1, 2**62),
        (2**62, 2, 4),
    ]:
        with pytest.raises(ValueError, match="have no blocks"):
            native(bytes(16), [1] * 31, first, count, size)
    for arguments in [(b"short", [1], 0, 1, 1), (bytes(16), (1,), 0, 1, 1), (bytes(16), [1], 0, 1)]:
        with pytest.raises(TypeError):
            native(*arguments)  # type: ignore[arg-type]
