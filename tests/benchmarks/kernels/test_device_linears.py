"""The benchmark of device layers runs every scheme, on the CPU as well, and counts the bytes that a layer is."""

import json

import pytest
import torch

from benchmarks.kernels.device_linears import (
    SCHEMES,
    bench_device_linears,
    main,
    random_layer,
    weight_bytes,
)
from inference_core.linear.device import DeviceScheme

CPU = torch.device("cpu")
BYTES = {
    "dense": 512 * 64 * 2,
    "int4": 512 * 64 // 2 + 512 // 128 * 64 * 4,
    "int8": 512 * 64 + 64 * 4,
    "fp8": 512 * 64 + 64 * 4,
    "fp8-blocks": 512 * 64 + 4 * 4,
}


def test_every_scheme_projection_and_row_count_is_measured() -> None:
    shapes = {"output": (512, 64), "down": (256, 40)}
    measured = list(bench_device_linears(CPU, torch.bfloat16, shapes, rows=(1, 5), stream_bytes=1, repeats=1))
    assert [(m["scheme"], m["projection"], m["rows"]) for m in measured] == [
        (scheme, projection, rows) for scheme in SCHEMES for projection in shapes for rows in (1, 5)
    ]
    for m in measured:
        assert m["us"] > 0
        assert m["tflop_s"] == pytest.approx(2 * m["inputs"] * m["outputs"] * m["rows"] / m["us"] / 1e6)


@pytest.mark.parametrize("scheme", SCHEMES)
def test_a_random_layer_has_the_size_of_its_scheme_and_usual_results(scheme: DeviceScheme) -> None:
    layer = random_layer(scheme, 512, 64, CPU, torch.bfloat16)
    out = torch.empty(100, 64, dtype=torch.bfloat16)
    layer.apply(torch.randn(100, 512).bfloat16(), out)
    assert weight_bytes(layer) == BYTES[scheme]
    assert 0.2 < out.float().std() < 5


def test_the_command_prints_a_line_for_each_measurement(capsys: pytest.CaptureFixture[str]) -> None:
    main(["--tiny"])
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [(m["scheme"], m["rows"]) for m in lines] == [(scheme, rows) for scheme in SCHEMES for rows in (1, 20)]
