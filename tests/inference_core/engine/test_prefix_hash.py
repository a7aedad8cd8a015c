"""The name of a block covers all that its keys and values depend on (SPEC KV-05)."""

import hypothesis.strategies as st
from hypothesis import given

from inference_core.prefix_hash import DIGEST_BYTES, block_digest, root_digest


def chain(salt: str, blocks: list[list[int]]) -> bytes:
    digest = root_digest(salt)
    for block in blocks:
        digest = block_digest(digest, block)
    return digest


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
