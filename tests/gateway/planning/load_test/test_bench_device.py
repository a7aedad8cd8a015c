"""`aio bench device` measures a group on the host, whole, and compares cards with what their data sheets allow."""

import json
import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
import torch
from msgspec.structs import replace

from gateway.base.configuration import load_settings
from gateway.planning.load_test import measured_groups
from gateway.planning.load_test.measured_groups import Peak, driver_version, measure_groups, report_text, with_roofline
from gateway.processes import start_checks
from gateway.processes.start_checks import measure_or_say_how
from gateway.runtime.device_report import DeviceReport, GroupSpeed, ModelSpeed, StreamSpeed, report_path
from inference_core.device.device_speed import CoreSpeed, memory_bandwidth
from inference_core.engine.core import Core
from inference_core.loaders.decoder_tensors import SHAPES
from inference_core.model_config import ExpertMixture
from inference_core.model_spec import DeviceGroupSpec
from inference_core.parallel.load_group import load_group
from inference_core.placement.hardware import devices, reported_device
from tests.gateway.in_process_cli import aio
from tests.inference_core.tiny_gguf import decoder_weights, write_gguf
from tiers.catalog.load import load_catalog

pytestmark = pytest.mark.processes

GROUP = """
[[gpu_groups]]
name = "{name}"
cards = {cards}
device = "cpu"
card_bytes = 100_000_000
slab_bytes = 65_536
max_num_batched_tokens = 64
max_num_seqs = 4

[[gpu_groups.models]]
name = "{name}-model"
path = "{path}"
weights = "bfloat16"
max_context = 128
activations = "float32"
kv_dtype = "float32"

[[tiers]]
name = "{name}-tier"
model = "{name}-model"
"""


@pytest.fixture
def catalog(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """One group of one card and one of two, of this machine's memory."""
    model = tmp_path / "tiny.gguf"
    write_gguf(model, decoder_weights())
    file = tmp_path / "aio.toml"
    file.write_text("".join(GROUP.format(name=name, cards=cards, path=model) for name, cards in (("a", 1), ("b", 2))))
    for variable in ("AIO_CATALOG", "AIO_DATA_DIR"):
        monkeypatch.delenv(variable, raising=False)
    return file


def test_every_group_is_measured_and_its_figures_are_kept_next_to_the_catalogue(catalog: Path, tmp_path: Path) -> None:
    options = ["--catalog", str(catalog), "--cache-dir", str(tmp_path / "cache"), "--seconds", "0.5"]
    done = aio("bench", "device", *options)
    assert done.exit_code == 0, done.output
    report = msgspec.json.decode((tmp_path / "aio.device.json").read_bytes(), type=DeviceReport)
    assert [(group.group, group.cards, group.device) for group in report.groups] == [("a", 1, "cpu"), ("b", 2, "cpu")]
    assert report.versions["torch"] == torch.__version__
    for group in report.groups:
        assert group.bandwidth > 0
        (model,) = group.models
        assert model.prefill_tokens_per_second > 0
        assert [one.streams for one in model.decode] == [1, 4]
        assert all(one.tokens_per_second > 0 for one in model.decode)
        # The host captures nothing, and no data sheet is known for it.
        assert model.graph_gain is model.prefill_roofline is None
        assert group.notes == ['no roofline: the table of cards has no "this machine\'s CPU"']
    assert report_text(report) in done.output
    assert load_catalog(str(catalog)).name == "aio"  # the report is no part of it


def test_on_cards_every_group_is_loaded_again_to_see_what_captured_steps_gain(
    catalog: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The cards are this machine's memory under another name, and answers take a time that is given."""
    loaded: list[tuple[str, bool]] = []

    def load(spec: DeviceGroupSpec, cache: Path) -> Core:
        loaded.append((spec.name, spec.core.capture_steps))
        return load_group(replace(spec, device="cpu"), cache)

    class Timed(CoreSpeed):
        def prefill(self, seconds: float) -> float:
            return 1000.0

        def decode(self, streams: int, seconds: float) -> float:
            return 40.0 * streams if loaded[-1][1] else 25.0

    monkeypatch.setattr(measured_groups, "load_group", load)
    monkeypatch.setattr(measured_groups, "CoreSpeed", Timed)
    monkeypatch.setattr(measured_groups, "memory_bandwidth", lambda device, seconds: 250e9)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "NVIDIA L4")
    properties = SimpleNamespace(total_memory=23_034 * 2**20)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: properties)
    catalog.write_text(catalog.read_text().replace('device = "cpu"', 'device = "cuda"'))

    report = measure_groups(load_catalog(str(catalog)), tmp_path, 10.0, lambda text: None)

    assert loaded == [("a", True), ("a", False), ("b", True), ("b", False)]
    for group in report.groups:
        assert (group.card, group.card_bytes, group.bandwidth_roofline) == ("NVIDIA L4", 23_034 * 2**20, 300e9)
        assert [model.graph_gain for model in group.models] == [1.6]
        # A tiny model is far from what the card could do, and all of it is said.
        assert len(group.notes) == 3
    assert "1.60 times as fast by captured steps" in report_text(report)


def test_a_catalogue_without_cards_is_refused_with_how_to_get_some(catalog: Path, tmp_path: Path) -> None:
    catalog.write_text("""
[[tiers]]
name = "a"
url = "http://127.0.0.1:1/v1"
[[tiers]]
name = "b"
url = "http://127.0.0.1:2/v1"
""")
    refused = aio("bench", "device", "--catalog", catalog)
    assert refused.exit_code == 1
    assert "aio init" in refused.output
    assert not (tmp_path / "aio.device.json").exists()


def test_bandwidth_counts_what_is_read_and_what_is_written() -> None:
    ticks = iter((0.0, 2.0, 2.0))
    assert memory_bandwidth(torch.device("cpu"), 1.0, num_bytes=1000, clock=lambda: next(ticks)) == 2 * 8 * 1000 / 2


def measured(card: str, **changes: Any) -> GroupSpeed:
    model = ModelSpeed(
        model="m",
        weight_bytes=16_000_000_000,
        prefill_tokens_per_second=40_000.0,
        decode=[StreamSpeed(streams=1, tokens_per_second=150.0), StreamSpeed(streams=32, tokens_per_second=1000.0)],
        graph_gain=1.5,
    )
    group = GroupSpeed(
        group="g", device="cuda", cards=1, card=card, card_bytes=1, bandwidth=3e12, models=[model], notes=[]
    )
    return replace(group, **changes)


def test_what_is_below_half_of_the_roofline_is_named_with_both_figures() -> None:
    configs = {"m": SHAPES["llama-3.1-8b"]}
    group = with_roofline(measured("NVIDIA H100 80GB HBM3"), 1, configs)
    (model,) = group.models
    # One answer reads 16 GB a step, at 3,350 GB/s; so do 32, which still take longer to read than to compute.
    assert model.decode[0].roofline == pytest.approx(3350e9 / 16e9)
    assert model.decode[1].roofline == pytest.approx(32 * 3350e9 / 16e9)
    assert model.prefill_roofline == pytest.approx(989e12 / (2 * 6_979_321_856))
    assert group.bandwidth_roofline == 3350e9
    assert group.notes == [
        "32 answers of m at once: 1,000 tokens/s, 15% of what the data sheet allows (6,700)",
    ]
    slow = with_roofline(measured("NVIDIA H100 80GB HBM3", bandwidth=1e12), 1, configs)
    assert slow.notes[0].startswith("NVIDIA H100 80GB HBM3 copies memory: 1,000 GB/s, 30%")


def test_cards_that_share_a_layer_read_it_together_and_all_cards_compute() -> None:
    config = SHAPES["llama-3.1-8b"]
    one, four = Peak(bandwidth=1e12, flops=1e14), Peak(bandwidth=2e12, flops=4e14)
    assert four.decode(1, config, 10**10) == 2 * one.decode(1, config, 10**10)
    assert four.prefill(config) == 4 * one.prefill(config)
    # From some number of answers on arithmetic is the bound, which more answers do not raise.
    assert one.decode(10_000, config, 10**10) == pytest.approx(one.decode(20_000, config, 10**10))


def test_an_unknown_card_and_a_mixture_get_no_roofline() -> None:
    unknown = with_roofline(measured("NVIDIA T400"), 1, {"m": SHAPES["llama-3.1-8b"]})
    assert unknown.notes == ["no roofline: the table of cards has no 'NVIDIA T400'"]
    assert unknown.models[0].decode[0].roofline is None
    mixture = msgspec.structs.replace(SHAPES["llama-3.1-8b"], experts=ExpertMixture(count=8, per_token=2))
    assert with_roofline(measured("NVIDIA L4"), 1, {"m": mixture}).models[0].prefill_roofline is None


def test_a_name_that_a_driver_reports_is_one_devices() -> None:
    reported = [name for device in devices().values() for name in device.reported_as]
    assert len(set(reported)) == len(reported)
    for name in reported:
        found = reported_device(name)
        assert found is not None
        assert found.executable
        assert found.bandwidth is not None
        assert found.flops is not None


def test_the_driver_is_unknown_without_one() -> None:
    class Nvml:
        def nvmlInit(self) -> None:
            raise OSError("no driver")

    assert driver_version(Nvml()) is None


class Started:
    """What the start of a server ran and said."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, status: int) -> None:
        self.commands: list[list[str]] = []
        self.environments: list[dict[str, str]] = []
        self._status = status
        monkeypatch.setattr(start_checks.subprocess, "run", self._run)

    def _run(self, command: list[str], **how: Any) -> "subprocess.CompletedProcess[str]":
        self.commands.append(command)
        self.environments.append(how["env"])
        return subprocess.CompletedProcess(command, self._status)


def test_a_start_with_cards_says_how_to_measure_them_or_measures_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    catalog = load_catalog("one-card")
    settings = load_settings({}, catalog="one-card", data_dir=str(tmp_path))
    started = Started(monkeypatch, status=1)

    measure_or_say_how(catalog, settings)
    said = capsys.readouterr().out
    assert "card-0 yet. Run `aio bench device --catalog one-card`" in said
    assert "AIO_MEASURE_CARDS" in said
    assert started.commands == []

    measure_or_say_how(catalog, replace(settings, measure_cards=True))
    assert started.commands[0][-2:] == ["bench", "device"]
    assert started.environments[0]["AIO_CATALOG"] == "one-card"
    assert "serves them all the same" in capsys.readouterr().out

    report = DeviceReport(measured_at="2026-01-01T00:00:00+00:00", catalog="one-card", versions={}, groups=[])
    groups = [measured("NVIDIA L4", group="card-0")]
    assert report_path(settings) == tmp_path / "one-card.device.json"
    report_path(settings).write_bytes(msgspec.json.encode(replace(report, groups=groups)))
    measure_or_say_how(catalog, replace(settings, measure_cards=True))
    assert len(started.commands) == 1
    assert capsys.readouterr().out == ""


def test_a_damaged_report_counts_as_none_and_groups_on_the_host_need_none(
    catalog: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = load_settings({}, catalog=str(catalog), data_dir=str(tmp_path))
    measure_or_say_how(load_catalog(str(catalog)), settings)
    assert capsys.readouterr().out == ""
    shipped = replace(settings, catalog="four-cards")
    report_path(shipped).write_text(json.dumps({"groups": 3}))
    measure_or_say_how(load_catalog("four-cards"), shipped)
    assert "card-0, card-1, cards-2-3" in capsys.readouterr().out
