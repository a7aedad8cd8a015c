"""Memory arithmetic, to the byte, and refusals that explain themselves."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inference_core.errors import MemoryPlanError
from inference_core.kv_cache.layout import KVDtype, kv_bytes_per_token
from inference_core.kv_cache.memory_plan import GB, Devices, KVDemand, format_bytes, plan_memory
from inference_core.model_config import ModelConfig, RotaryEmbedding

GIB = 2**30


def seventy_b(length: int = 8192, batch: int = 32) -> KVDemand:
    return KVDemand(num_layers=80, num_heads=64, num_kv_heads=8, head_dim=128, length=length, batch=batch)


def test_a_70b_model_needs_320_kib_per_token_and_80_gib_for_32_sequences() -> None:
    demand = seventy_b()

    assert demand.bytes_per_token == 320 * 1024
    assert demand.total_bytes == 80 * GIB
    assert demand.explain()[-1].endswith("80.00 GiB (85.90 GB)")
    assert "2 x 80 layers x 8 KV heads x 128 head dim x 2 bytes" in demand.explain()[1]


@pytest.mark.parametrize(
    ("heads", "kv_heads", "kind", "share"),
    [(32, 32, "MHA", 1.0), (32, 8, "GQA", 0.25), (64, 8, "GQA", 0.125), (64, 1, "MQA", 1 / 64)],
)
def test_the_cache_shrinks_with_the_kv_heads(heads: int, kv_heads: int, kind: str, share: float) -> None:
    def demand(count: int) -> KVDemand:
        return KVDemand(num_layers=2, num_heads=heads, num_kv_heads=count, head_dim=64, length=10)

    assert (demand(kv_heads).attention, demand(kv_heads).share_of_mha) == (kind, share)
    assert demand(kv_heads).total_bytes == share * demand(heads).total_bytes


@pytest.mark.parametrize(("dtype", "share"), [("float32", 2.0), ("bfloat16", 1.0)])
def test_the_cache_scales_with_its_dtype(dtype: str, share: float) -> None:
    demand = KVDemand(num_layers=80, num_heads=64, num_kv_heads=8, head_dim=128, length=1, dtype=dtype)

    assert demand.total_bytes == share * 320 * 1024


@pytest.mark.parametrize("dtype", ["int8", "fp8"])
def test_numbers_of_8_bits_share_a_scale_of_two_bytes_per_token_and_head(dtype: KVDtype) -> None:
    demand = KVDemand(num_layers=80, num_heads=64, num_kv_heads=8, head_dim=128, length=1, dtype=dtype)

    assert demand.total_bytes == 2 * 80 * 8 * (128 + 2)
    assert f"2 x 80 layers x 8 KV heads x (128 head dim x 1 + 2) bytes ({dtype})" in demand.explain()[1]


@pytest.mark.parametrize("head_dim", [64, 128])
@pytest.mark.parametrize("dtype", ["int8", "fp8"])
def test_a_cache_of_8_bits_holds_at_least_1_9_times_the_tokens_of_bfloat16(dtype: KVDtype, head_dim: int) -> None:
    sizes = [
        kv_bytes_per_token(num_layers=32, num_kv_heads=8, head_dim=head_dim, dtype=one) for one in ("bfloat16", dtype)
    ]

    assert sizes[0] / sizes[1] >= 1.9


def test_a_70b_awq_model_on_four_24_gb_cards_leaves_46_gb_for_140_thousand_tokens() -> None:
    plan = plan_memory(
        devices=Devices(bytes_each=24 * GB, count=4, usable_share=0.90), weight_bytes=40 * GB, kv=seventy_b(batch=1)
    )

    assert plan.kv_bytes == pytest.approx(46.4 * GB)
    assert plan.kv_tokens == 11_600_000_000 // (80 * 1024) == 141_601
    assert plan.blocks(16) == 8850
    assert "tokens that fit = 43.21 GiB (46.40 GB) / 327,680 bytes = 141,601" in "\n".join(plan.lines)


def test_a_cache_that_does_not_fit_is_refused_line_by_line() -> None:
    with pytest.raises(MemoryPlanError) as error:
        plan_memory(devices=Devices(bytes_each=24 * GB, count=4), weight_bytes=40 * GB, kv=seventy_b())

    missing = 80 * GIB - int(46.4 * GB)
    assert str(error.value).splitlines() == [
        f"the KV cache does not fit: {format_bytes(missing)} are missing",
        "usable: 4 x 22.35 GiB (24.00 GB) x 0.9 = 80.47 GiB (86.40 GB)",
        "weights: 37.25 GiB (40.00 GB)",
        "reserve: 0 bytes",
        "left for the KV cache: 43.21 GiB (46.40 GB)",
        "GQA: 8 KV heads for 64 query heads, 0.125x the cache of multi-head attention",
        "KV per token = 2 x 80 layers x 8 KV heads x 128 head dim x 2 bytes (float16) = 327,680 bytes = 320.0 KiB",
        "KV in all = 327,680 bytes x 8,192 tokens x 32 sequences = 80.00 GiB (85.90 GB)",
        "tokens that fit = 43.21 GiB (46.40 GB) / 327,680 bytes = 141,601; asked for 8,192 x 32 = 262,144",
        "use fewer or shorter sequences, a smaller KV dtype, fewer weight bits, or more memory",
    ]


def test_weights_that_do_not_fit_are_refused() -> None:
    with pytest.raises(MemoryPlanError, match=r"the weights do not fit: 17\.14 GiB \(18\.40 GB\)"):
        plan_memory(devices=Devices(bytes_each=24 * GB), weight_bytes=40 * GB, kv=seventy_b(length=1, batch=1))


def test_more_devices_than_kv_heads_replicate_them() -> None:
    demand = KVDemand(num_layers=1, num_heads=8, num_kv_heads=2, head_dim=64, length=1)

    plan = plan_memory(devices=Devices(bytes_each=1_000_000, count=4, usable_share=1.0), weight_bytes=0, kv=demand)

    assert plan.kv_tokens == 1_000_000 // (2 * 64 * 2)


def test_kv_heads_that_do_not_divide_evenly_cost_the_fullest_device() -> None:
    demand = KVDemand(num_layers=1, num_heads=24, num_kv_heads=6, head_dim=64, length=1)

    plan = plan_memory(devices=Devices(bytes_each=1_000_000, count=4, usable_share=1.0), weight_bytes=0, kv=demand)

    assert plan.kv_tokens == 1_000_000 // (2 * 2 * 64 * 2)
    assert any("6 KV heads on 4 devices: 2 on each" in line for line in plan.lines)


def test_the_last_token_that_fits_is_accepted_and_one_more_is_refused() -> None:
    devices = Devices(bytes_each=24 * GB, count=4)

    assert plan_memory(devices=devices, weight_bytes=40 * GB, kv=seventy_b(141_601, 1)).kv_tokens == 141_601
    with pytest.raises(MemoryPlanError, match="asked for 141,602 x 1 = 141,602"):
        plan_memory(devices=devices, weight_bytes=40 * GB, kv=seventy_b(141_602, 1))


def test_the_plan_of_a_model_uses_its_own_shape() -> None:
    config = ModelConfig(
        architecture="llama",
        vocab_size=49152,
        hidden_size=576,
        intermediate_size=1536,
        num_layers=30,
        num_heads=9,
        num_kv_heads=3,
        head_dim=64,
        max_position=8192,
        rms_eps=1e-5,
        rope=RotaryEmbedding(theta=1e5),
    )

    assert KVDemand.of_model(config, length=1, batch=1, dtype="bfloat16").total_bytes == 2 * 30 * 3 * 64 * 2


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (80 * GIB, "80.00 GiB (85.90 GB)"),
        (23040, "22.50 KiB (23.04 kB)"),
        (180 * 2**20, "180.00 MiB (188.74 MB)"),
        (-24 * GB, "-22.35 GiB (-24.00 GB)"),
        (7, "7 bytes"),
    ],
)
def test_sizes_are_written_in_both_units(count: int, text: str) -> None:
    assert format_bytes(count) == text


@given(
    bytes_each=st.integers(10**6, 10**12),
    count=st.sampled_from([1, 2, 4, 8]),
    weights=st.integers(0, 10**12),
    reserve=st.integers(0, 10**9),
    length=st.integers(1, 10**6),
)
def test_an_accepted_plan_never_exceeds_the_devices_and_a_refusal_is_never_needless(
    bytes_each: int, count: int, weights: int, reserve: int, length: int
) -> None:
    devices = Devices(bytes_each=bytes_each, count=count, usable_share=0.9)
    demand = seventy_b(length=length, batch=1)
    try:
        plan = plan_memory(devices=devices, weight_bytes=weights, kv=demand, reserve_bytes=reserve)
    except MemoryPlanError:
        rounding = 4 * count
        assert weights + reserve + demand.total_bytes > devices.usable_bytes_each * count - rounding
        return
    assert plan.kv_tokens >= length
    assert weights + reserve + plan.kv_tokens * demand.bytes_per_token <= devices.usable_bytes_each * count


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda: seventy_b(length=0), "length is 0"),
        (
            lambda: KVDemand(num_layers=1, num_heads=6, num_kv_heads=4, head_dim=8, length=1),
            "6 query heads cannot share 4",
        ),
        (lambda: Devices(bytes_each=1, usable_share=1.5), "usable_share is 1.5"),
        (lambda: Devices(bytes_each=0), "at least 1"),
        (
            lambda: plan_memory(devices=Devices(bytes_each=GB, count=3), weight_bytes=0, kv=seventy_b()),
            "cannot be split over 3 devices",
        ),
        (
            lambda: plan_memory(devices=Devices(bytes_each=GB), weight_bytes=-1, kv=seventy_b()),
            "neither may be negative",
        ),
    ],
)
def test_impossible_numbers_are_refused(make: object, reason: str) -> None:
    assert callable(make)
    with pytest.raises(MemoryPlanError, match=reason):
        make()
