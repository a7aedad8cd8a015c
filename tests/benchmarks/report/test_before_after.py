"""Two measurements before and after: ratios with intervals, cost, and a refusal of what is not alike."""

import pytest
from click.testing import CliRunner

from benchmarks.__main__ import main
from benchmarks.report.before_after import before_after
from benchmarks.report.measured import MeasurementError
from benchmarks.report.measurement import Measurement


def kept(path, speeds, *, settings=None, finish=True, kind="sweep"):
    """A measurement with two loads, whose latency falls as its speed rises."""
    measurement = Measurement.begin(kind, {"rounds": 3} if settings is None else settings, path)
    for turn, speed in enumerate(speeds):
        for level in (1, 8):
            row = {
                "round": turn,
                "concurrency": level,
                "req_s": speed / 10,
                "out_tok_s": speed,
                "total_tok_s": 2 * speed,
            }
            measurement.add(row | {"e2e_p50_ms": 1000 / speed, "e2e_p95_ms": 2000 / speed})
    if finish:
        measurement.finish({})
    return path


def lines(text):
    """The cells of each line by load and figure."""
    cells = [[cell.strip() for cell in line.split("|")[1:-1]] for line in text.splitlines() if line.startswith("|")]
    return {tuple(row[:2]): row[2:] for row in cells[2:]}


def test_each_load_has_latency_rates_and_cost_with_the_ratio(tmp_path):
    old, new = kept(tmp_path / "a", (98.0, 100.0, 102.0)), kept(tmp_path / "b", (196.0, 200.0, 204.0))

    found = lines(before_after(old, new, (0.72, 0.36)))

    assert len(found) == 2 * 5
    assert found["concurrency 8", "output tokens/s"][:2] == ["100 (98.0 to 102)", "200 (196 to 204)"]
    assert found["concurrency 8", "output tokens/s"][2].startswith("2.00× [1.9")
    assert found["concurrency 1", "latency p95, ms"][2].startswith("0.50× [0.")
    # 0.72 dollars an hour at 200 tokens a second are a dollar a million.
    assert found["concurrency 1", "$ per million tokens"][:2] == ["1.00 (0.98 to 1.02)", "0.25 (0.25 to 0.26)"]


def test_without_a_price_there_is_no_cost_and_a_single_round_has_no_interval(tmp_path):
    old, new = kept(tmp_path / "a", (100.0,)), kept(tmp_path / "b", (150.0,))

    found = lines(before_after(old, new))

    assert not any("$" in figure for _, figure in found)
    assert found["concurrency 1", "output tokens/s"][2] == "1.50× (a single round)"


def test_other_settings_are_refused_unless_differences_are_allowed_and_then_named(tmp_path):
    old, new = kept(tmp_path / "a", (1.0,)), kept(tmp_path / "b", (1.0,), settings={"rounds": 3, "seed": 8})

    with pytest.raises(MeasurementError, match=r"not measured alike: settings\.seed None and 8"):
        before_after(old, new)
    assert before_after(old, new, differing=True).startswith("Not measured alike: settings.seed None and 8.")


def test_another_machine_is_refused_and_another_commit_is_not(tmp_path, monkeypatch):
    machine = {"processor": "p", "cpus": 2, "kernels": "avx2", "python": "3.12", "commit": "a"}
    monkeypatch.setattr("benchmarks.report.measurement.describe_machine", lambda: machine)
    old = kept(tmp_path / "a", (1.0, 1.1))
    monkeypatch.setattr("benchmarks.report.measurement.describe_machine", lambda: machine | {"commit": "b"})
    assert "After: Measured on" in before_after(old, kept(tmp_path / "b", (1.0, 1.1)))

    monkeypatch.setattr("benchmarks.report.measurement.describe_machine", lambda: machine | {"cpus": 4})
    with pytest.raises(MeasurementError, match=r"machine\.cpus 2 and 4"):
        before_after(old, kept(tmp_path / "c", (1.0, 1.1)))


@pytest.mark.parametrize(("changes", "said"), [({"finish": False}, "not finished"), ({"kind": "other"}, "of one kind")])
def test_what_cannot_be_compared_is_refused_by_the_command_without_a_traceback(tmp_path, changes, said):
    old, new = kept(tmp_path / "a", (1.0,)), kept(tmp_path / "b", (1.0,), **changes)

    shown = CliRunner().invoke(main, ["compare", str(old), str(new), "--differing"])

    assert shown.exit_code == 1
    assert said in shown.output
