"""The benchmark of mixtures of experts, on tiny models."""

from pathlib import Path

import pytest

from benchmarks.core import experts
from benchmarks.kernels.machine_peaks import MachinePeaks
from inference_core.native import cpu

PEAKS = MachinePeaks(
    "any", 2, integer_gmac_s=100.0, float_gmac_s=1.0, read_gb_s_one=5.0, read_gb_s_all=10.0, barrier_ns=0
)


@pytest.mark.skipif(not cpu.AVAILABLE, reason="the native kernels were not built")
def test_a_mixture_and_its_dense_model_are_measured_in_turn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("HIDDEN", 256), ("INNER", 128), ("LAYERS", 1)):
        monkeypatch.setattr(experts, name, value)

    rows = experts.bench_experts(tmp_path, streams=(1, 4), rounds=2)

    assert [row.streams for row in rows] == [1, 4]
    assert all(row.experts_ms > 0 and row.dense_ms > 0 and row.linears_ms <= row.experts_ms for row in rows)
    assert rows[0].bound_ms < rows[1].bound_ms


def test_the_dense_model_has_the_active_weights_of_the_mixture() -> None:
    mixture, dense = experts.config_of(8), experts.config_of(0)

    assert mixture.experts_per_token * mixture.intermediate_size == dense.intermediate_size


def test_one_stream_reads_two_experts_and_many_streams_all() -> None:
    mixture = experts.config_of(8)
    one = 3 * experts.HIDDEN * experts.INNER * experts.LAYERS * experts.BYTES_PER_WEIGHT / 10e9

    alone, crowd = (experts.bound_seconds(mixture, n, PEAKS) for n in (1, 10_000))

    assert alone > 2 * one
    assert alone < 3 * one
    # So many are bound by products, which grow with every stream.
    assert crowd == pytest.approx(10_000 * experts.bound_seconds(mixture, 1_000, PEAKS) / 1_000)
