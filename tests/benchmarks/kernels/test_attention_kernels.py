"""The attention benchmark has a row per cache format and load, in figures that follow from the time it took."""

import pytest

from benchmarks.kernels.attention_kernels import bench_attention
from benchmarks.kernels.machine_peaks import MachinePeaks
from inference_core.model_config import ModelConfig, RotaryEmbedding
from inference_core.native import cpu

pytestmark = pytest.mark.skipif(not cpu.AVAILABLE, reason="kernels not built")

CONFIG = ModelConfig(
    architecture="llama",
    vocab_size=80,
    hidden_size=64,
    intermediate_size=96,
    num_layers=2,
    num_heads=4,
    num_kv_heads=2,
    head_dim=16,
    max_position=128,
    rms_eps=1e-5,
    rope=RotaryEmbedding(theta=1e4),
)
PEAKS = MachinePeaks(
    instruction_set="none",
    threads=1,
    integer_gmac_s=100.0,
    float_gmac_s=50.0,
    read_gb_s_one=1.0,
    read_gb_s_all=1.0,
    barrier_ns=100.0,
)


def rows(**loads: tuple[int, ...]) -> list[dict[str, object]]:
    empty: dict[str, tuple[int, ...]] = {"contexts": (), "sequences": (), "chunks": (), "starts": ()}
    return list(bench_attention(CONFIG, PEAKS, max_cached_tokens=128, **(empty | loads)))  # type: ignore[arg-type]


def test_every_format_decodes_at_every_context_that_fits() -> None:
    measured = rows(contexts=(16, 64), sequences=(1, 3))
    assert [(r["kv_dtype"], r["sequences"], r["context"]) for r in measured] == [
        (dtype, count, context)
        for dtype in ("bfloat16", "float32", "int8")
        for context, count in ((16, 1), (16, 3), (64, 1))
    ]


def test_a_chunk_attends_what_came_before_and_itself_up_to_the_diagonal() -> None:
    row = rows(chunks=(32,), starts=(48,))[0]
    pairs = 32 * 48 + 32 * 33 / 2
    seconds = float(str(row["us"])) / 1e6
    assert (row["kind"], row["queries"], row["context"]) == ("prefill", 32, 80)
    assert row["ns_per_token_head"] == pytest.approx(seconds * 1e9 / (pairs * 2), rel=0.01, abs=1e-3)
    assert row["of_peak"] == pytest.approx(2 * pairs * 4 * 16 / seconds / 50e9, rel=0.01, abs=1e-4)
