"""Heads, inner columns, layers and vocabulary of each rank: together the whole model, or a refusal (SPEC PX-02)."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from inference_core.errors import MeshError
from inference_core.model_config import ModelConfig, RotaryEmbedding
from inference_core.parallel.mesh import Mesh, SplitUnits, divide, split, split_heads

SEVENTY_B = ModelConfig(
    architecture="llama", vocab_size=128_256, hidden_size=8192, intermediate_size=28_672, num_layers=80, num_heads=64,
    num_kv_heads=8, head_dim=128, max_position=8192, rms_eps=1e-5, rope=RotaryEmbedding(theta=5e5),
)  # fmt: skip
SMOLLM2 = msgspec.structs.replace(
    SEVENTY_B, vocab_size=49_152, hidden_size=576, intermediate_size=1536, num_layers=30, num_heads=9, num_kv_heads=3,
    head_dim=64,
)  # fmt: skip


def test_a_70b_model_over_four_ranks_gives_each_16_heads_and_2_kv_heads() -> None:
    shares = divide(SEVENTY_B, Mesh(tensor=4), SplitUnits(attention_output=128, down=128))

    assert [share.heads.query for share in shares] == [range(16), range(16, 32), range(32, 48), range(48, 64)]
    assert [share.heads.kv_heads for share in shares] == [(0, 1), (2, 3), (4, 5), (6, 7)]
    local = shares[1].config(SEVENTY_B)
    assert (local.num_heads, local.num_kv_heads, local.intermediate_size, local.vocab_size) == (16, 2, 7168, 32_064)
    assert (local.num_layers, local.hidden_size) == (80, 8192)


def test_80_layers_over_four_stages_are_20_each() -> None:
    shares = divide(SEVENTY_B, Mesh(pipeline=4))

    assert [share.layers for share in shares] == [range(20), range(20, 40), range(40, 60), range(60, 80)]
    assert [(share.first, share.last) for share in shares] == [
        (True, False), (False, False), (False, False), (False, True),
    ]  # fmt: skip


def test_kv_heads_are_replicated_where_there_are_more_ranks() -> None:
    shares = split_heads(64, 8, 16)

    assert [share.kv_heads for share in shares] == [(head // 2,) for head in range(16)]
    assert all(len(share.query) == 4 for share in shares)


@pytest.mark.parametrize(
    ("mesh", "said"),
    [
        (Mesh(tensor=3), "64 query heads cannot be split over 3 ranks evenly; use one of 1, 2, 4, 8, 16, 32, 64 ranks"),
        (Mesh(pipeline=3), "80 layers cannot be split over 3 ranks evenly"),
        (Mesh(tensor=128), "64 query heads cannot give each of 128 ranks a part; use at most 64"),
        (Mesh(pipeline=81), "80 layers cannot give each of 81 ranks a part; use at most 80"),
    ],
)
def test_sizes_that_do_not_divide_are_refused_with_what_would(mesh: Mesh, said: str) -> None:
    with pytest.raises(MeshError, match=said):
        divide(SEVENTY_B, mesh)


def test_eight_kv_heads_over_six_ranks_are_refused_even_if_query_heads_divide() -> None:
    with pytest.raises(MeshError, match="8 KV heads can neither be split over 6 ranks evenly nor be replicated"):
        split_heads(48, 8, 6)
    assert len(split_heads(48, 8, 6, uneven=True)) == 6


def test_a_group_of_weights_that_share_a_scale_is_never_split() -> None:
    """Groups of 128 span two heads of 64, and 24 of them lie in 3,072 inner columns (SPEC PX-05)."""
    config = msgspec.structs.replace(SMOLLM2, num_heads=10, num_kv_heads=5, intermediate_size=3072)
    units = SplitUnits(attention_output=128, down=128)

    shares = divide(config, Mesh(tensor=3), units, uneven=True)

    assert [share.heads.query for share in shares] == [range(4), range(4, 8), range(8, 10)]
    assert [share.inner for share in shares] == [range(1024), range(1024, 2048), range(2048, 3072)]
    with pytest.raises(MeshError, match="9 query heads in units of 2 leave 1 over"):
        divide(SMOLLM2, Mesh(tensor=2), units, uneven=True)
    with pytest.raises(MeshError, match="in units of 1536 cannot give each of 2 ranks a part"):
        divide(SMOLLM2, Mesh(tensor=2), SplitUnits(down=1536), uneven=True)


def test_nine_heads_over_three_kv_heads_split_unevenly_only_when_allowed() -> None:
    with pytest.raises(MeshError, match=r"cannot be split over 2 ranks evenly; .* or allow uneven splits"):
        divide(SMOLLM2, Mesh(tensor=2))
    halves = divide(SMOLLM2, Mesh(tensor=2), uneven=True)
    assert [(share.heads.query, share.heads.kv_heads) for share in halves] == [
        (range(5), (0, 0, 0, 1, 1)),
        (range(5, 9), (1, 2, 2, 2)),
    ]
    quarters = divide(SMOLLM2, Mesh(tensor=4), uneven=True)
    assert [share.heads.kv_heads for share in quarters] == [(0,), (1,), (1, 2), (2,)]


@given(kv_heads=st.integers(1, 12), group=st.integers(1, 8), parts=st.integers(1, 16), unit=st.sampled_from([1, 2, 4]))
def test_every_query_head_reads_the_kv_head_of_its_group_wherever_it_is_cut(
    kv_heads: int, group: int, parts: int, unit: int
) -> None:
    heads = kv_heads * group
    try:
        shares = split_heads(heads, kv_heads, parts, unit=unit, uneven=True)
    except MeshError:
        assert parts > 1
        assert heads % unit or heads // unit < parts
        return
    covered = []
    for share in shares:
        local = len(share.kv_heads)
        assert len(share.query) % local == 0
        served = len(share.query) // local
        for position, head in enumerate(share.query):
            assert share.kv_heads[position // served] == head // group
            covered.append(head)
        assert share.query.start % unit == 0
    assert covered == list(range(heads))


@given(total=st.integers(1, 500), parts=st.integers(1, 20), unit=st.integers(1, 9))
def test_spans_cover_everything_once_and_differ_by_one_unit_at_most(total: int, parts: int, unit: int) -> None:
    try:
        spans = split(total, parts, "things", unit=unit, uneven=True)
    except MeshError:
        assert parts > 1
        assert total % unit or total // unit < parts
        return
    assert [i for span in spans for i in span] == list(range(total))
    sizes = {len(span) for span in spans}
    assert len(sizes) == 1 or max(sizes) - min(sizes) == unit
