"""The catalogue of devices: complete, checked, and honest about what models run on (SPEC TI-08)."""

from pathlib import Path

import pytest

from inference_core.errors import MeshError
from inference_core.placement.hardware import device, devices, parse_devices, read_devices

OWN = """
[[devices]]
name = "mine"
kind = "gpu"
memory_bytes = 48_000_000_000
compute_capability = 9.0
"""


def test_every_kind_of_device_is_there_and_only_cpus_and_recent_gpus_run_models() -> None:
    known = devices()
    assert {each.kind for each in known.values()} == {"gpu", "cpu", "tpu", "asic", "fpga", "edge"}
    assert {each.kind for each in known.values() if each.executable} == {"gpu", "cpu"}
    assert not known["v100-32gb"].executable  # older than what the kernels are compiled for
    assert not known["jetson-agx-orin"].executable
    for name in ("tpu-v4", "gaudi2", "inferentia2", "ipu-bow", "alveo-u280"):
        assert not known[name].executable


def test_fp8_comes_with_ada_and_hopper() -> None:
    assert [device(name).has_fp8 for name in ("a100-80gb", "l4", "h100", "b200")] == [False, True, True, True]


def test_an_unknown_device_is_answered_with_the_known_ones() -> None:
    with pytest.raises(MeshError, match="no device 'h1000' in the hardware catalogue; known are l4, "):
        device("h1000")


def test_a_catalogue_of_ones_own_is_read_and_checked(tmp_path: Path) -> None:
    path = tmp_path / "hardware.toml"
    path.write_text(OWN)
    assert read_devices(path)["mine"].executable
    with pytest.raises(MeshError, match="names a device twice"):
        parse_devices(OWN + OWN, "text")
    with pytest.raises(MeshError, match="not understood"):
        parse_devices(OWN.replace("48_000_000_000", "0"), "text")
    with pytest.raises(MeshError, match="cannot be read"):
        read_devices(tmp_path / "nowhere.toml")
