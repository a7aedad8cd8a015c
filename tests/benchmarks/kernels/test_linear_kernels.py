"""The kernel benchmark measures every kernel on a model's shapes, and says what the machine allows."""

import pytest

from benchmarks.kernels.linear_kernels import SCHEMES, bench_kernels, shapes
from benchmarks.kernels.machine_peaks import MachinePeaks, machine_peaks, model_bounds
from inference_core.model_config import ModelConfig, RotaryEmbedding
from inference_core.native import cpu

pytestmark = pytest.mark.skipif(not cpu.AVAILABLE, reason="kernels not built")

CONFIG = ModelConfig(
    architecture="llama",
    vocab_size=80,
    hidden_size=64,
    intermediate_size=96,
    num_layers=10,
    num_heads=4,
    num_kv_heads=2,
    head_dim=16,
    max_position=64,
    rms_eps=1e-5,
    rope=RotaryEmbedding(theta=1e4),
)
PEAKS = MachinePeaks(
    instruction_set="none",
    threads=2,
    integer_gmac_s=100.0,
    float_gmac_s=50.0,
    read_gb_s_one=1.0,
    read_gb_s_all=2.0,
    barrier_ns=100.0,
)


def test_shapes_are_those_of_the_fused_projections() -> None:
    assert shapes(CONFIG) == {
        "qkv": (64, 128),
        "output": (64, 64),
        "gate_up": (64, 192),
        "down": (96, 64),
        "head": (64, 80),
    }


def test_every_kernel_has_a_row_per_projection_and_size() -> None:
    rows = list(bench_kernels(CONFIG, PEAKS, schemes=SCHEMES, rows=(1, 3), threads=1, stream_bytes=1))
    assert [(r["scheme"], r["projection"], r["rows"]) for r in rows] == [
        (scheme, projection, count) for scheme in SCHEMES for projection in shapes(CONFIG) for count in (1, 3)
    ]


def test_a_row_has_the_slower_of_reading_and_multiplying() -> None:
    rows = list(bench_kernels(CONFIG, PEAKS, schemes=("float32",), rows=(1, 1000), threads=1, stream_bytes=1))
    first, last = rows[0], rows[1]
    assert (first["bound"], first["bound_us"]) == ("memory", round(64 * 128 * 4 / 1.0e9 * 1e6, 1))
    assert (last["bound"], last["bound_us"]) == ("products", round(64 * 128 * 1000 / 50e9 * 1e6, 1))


def test_a_step_of_one_stream_is_bound_by_reading_the_weights() -> None:
    attention = 2 * 10 * 64 * 160 / 100e9
    assert model_bounds(PEAKS, CONFIG, 10**6)["decode_1"] == pytest.approx(1 / (10**6 / 2e9 + attention))


def test_a_long_prompt_is_bound_by_products_and_attention() -> None:
    body = 10 * (64 * 128 + 64 * 64 + 3 * 64 * 96)
    seconds = 1024 * (body / 200e9 + 2 * 10 * 64 * 512 / 100e9) + 64 * 80 / 200e9
    assert model_bounds(PEAKS, CONFIG, 10**6)["prefill_1024"] == pytest.approx(1024 / seconds)


def test_a_closed_loop_pays_for_prompts_and_answers() -> None:
    bounds = model_bounds(PEAKS, CONFIG, 10**6)
    prompts, steps = 8 * 128 / bounds["prefill_128"], 64 * 8 / bounds["decode_8"]
    assert bounds["closed_loop_8"] == pytest.approx(8 * 64 / (prompts + steps))


def test_the_machines_peaks_are_measured_with_all_threads_in_place_afterwards() -> None:
    peaks = machine_peaks(2)
    assert peaks.threads == 2
    assert peaks.instruction_set == cpu.extension().instruction_sets()[0]
    assert min(peaks.integer_gmac_s, peaks.float_gmac_s, peaks.read_gb_s_one, peaks.barrier_ns) > 0
    # Four INT8 products fit where one of float32 does.
    assert peaks.integer_gmac_s > peaks.float_gmac_s
