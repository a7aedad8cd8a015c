"""The benchmark of the GPU kernels runs end to end on the CPU, so that it is not broken when a device comes."""

import json

import pytest
import torch

from benchmarks.kernels import device_kernels as benchmark


def test_the_tiny_benchmark_covers_every_kernel_and_load(capsys: pytest.CaptureFixture[str]) -> None:
    benchmark.main(["--tiny"])
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert {row["kernel"] for row in rows} >= {
        "copy",
        "decode",
        "prefill",
        "residual and norm",
        "SwiGLU",
        "RoPE and write",
        "adapters",
    }
    decodes = [
        (row["sequences"], row["context"]) for row in rows if row.get("kv_dtype") == "fp8" and row["kernel"] == "decode"
    ]
    assert decodes == list(benchmark.TINY.decodes)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a device")
def test_without_a_device_nothing_is_presented_as_measured() -> None:
    with pytest.raises(SystemExit, match="no CUDA device"):
        benchmark.main([])
