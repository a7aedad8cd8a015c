"""Plots are PNG files of modest size, one per finished measurement that has a plot."""

import pytest

from benchmarks.core.sweep import COLUMNS
from benchmarks.report.measurement import Measurement

plots = pytest.importorskip("benchmarks.report.plots", reason="needs matplotlib", exc_type=ModuleNotFoundError)


def spread(value):
    return {"median": value, "low": value * 0.9, "high": value * 1.1}


@pytest.fixture
def results(tmp_path):
    sweep = Measurement.begin("sweep", {}, tmp_path / "sweep.jsonl")
    points = [
        {"concurrency": n, "figures": {c: spread(min(n, 8) * 100.0 if c == "out_tok_s" else n * 9.0) for c in COLUMNS}}
        for n in (1, 2, 4, 8, 16, 32)
    ]
    sweep.finish({"points": points, "knee": 8, "saturation": 8.0})
    peers = Measurement.begin("peers", {}, tmp_path / "peers.jsonl")
    figures = dict.fromkeys(("ttft_p50_ms", "ttft_p99_ms", "itl_p50_ms", "itl_p99_ms", "e2e_p50_ms"), 5.0)
    for transport, peer in (("in process", "one"), ("http", "other")):
        for system, speed in ((peer, 100.0), ("aio", 250.0)):
            for load, concurrency in (("one stream", 1), ("many streams", 8), ("many streams", 32)):
                row = {"round": 0, "transport": transport, "system": system, "load": load, "concurrency": concurrency}
                counts = {"requests": 5, "ok": 5, "busy_before": 0.0, "mean_prompt": 128.0}
                peers.add(row | counts | figures | {"out_tok_s": speed * concurrency**0.5})
    peers.finish(None)
    return tmp_path


def test_each_finished_measurement_is_drawn(results, tmp_path):
    drawn = plots.draw_plots(results, tmp_path / "img")

    assert [path.name for path in drawn] == ["sweep.png", "peers.png"]
    for path in drawn:
        content = path.read_bytes()
        assert content.startswith(b"\x89PNG")
        assert 5_000 < len(content) < 150_000


def test_nothing_measured_draws_nothing(tmp_path):
    assert plots.draw_plots(tmp_path, tmp_path / "img") == []
