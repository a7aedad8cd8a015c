"""Plots of measurements as small PNG files. matplotlib is a development dependency, imported only here."""

from collections.abc import Sequence
from pathlib import Path

import matplotlib
import msgspec
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from benchmarks.report.measured import AblationResults, Spread, SweepResults
from benchmarks.report.measurement import Measurement, read_finished
from benchmarks.report.peer_tables import OURS, STREAM_LOADS, PeerResults, SystemResult
from benchmarks.report.peer_tables import results_of as peer_results_of

matplotlib.use("Agg")

# Colours that keep apart for colour-blind readers (Okabe and Ito 2008).
BLUE, ORANGE, GREEN, GREY = "#0072B2", "#D55E00", "#009E73", "#7F7F7F"
_WIDTH, _DPI = 8.0, 110


def _figure(height: float, columns: int = 1) -> tuple[Figure, list[Axes]]:
    figure = Figure(figsize=(_WIDTH, height), dpi=_DPI, layout="constrained")
    axes = [figure.add_subplot(1, columns, column + 1) for column in range(columns)]
    for each in axes:
        each.spines[["top", "right"]].set_visible(False)
        each.grid(axis="both", linewidth=0.4, alpha=0.6)
        each.set_axisbelow(True)
    return figure, axes


def _save(figure: Figure, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, metadata={"Software": ""})


def _median(figure: Spread | None) -> float:
    return float("nan") if figure is None else figure.median


def _errors(figures: Sequence[Spread | None]) -> list[list[float]]:
    """Distances from the medians to both ends of the ranges, as error bars want them."""
    spreads = [figure or Spread(0, 0, 0) for figure in figures]
    return [[f.median - f.low for f in spreads], [f.high - f.median for f in spreads]]


def plot_sweep(results: SweepResults, path: Path) -> None:
    """Throughput over latency with the concurrency at each point, and both over concurrency next to it."""
    figure, (curve, levels) = _figure(3.6, columns=2)
    speed = [point.figures["out_tok_s"] for point in results.points]
    latency = [_median(point.figures["e2e_p50_ms"]) / 1e3 for point in results.points]
    curve.plot(latency, [_median(s) for s in speed], "o-", color=BLUE, markersize=4)
    for point, x, y in zip(results.points, latency, speed, strict=True):
        at_knee = point.concurrency == results.knee
        curve.annotate(
            f"{point.concurrency}{' (knee)' if at_knee else ''}",
            (x, _median(y)),
            textcoords="offset points",
            xytext=(5, -11),
            fontsize=8,
            color=ORANGE if at_knee else GREY,
        )
    curve.set(xlabel="whole answer, p50 (s)", ylabel="output tokens/s", xscale="log", ylim=(0, None))
    at = [point.concurrency for point in results.points]
    for name, color, label in (
        ("ttft_p50_ms", BLUE, "TTFT p50"),
        ("ttft_p99_ms", GREY, "TTFT p99"),
        ("itl_p50_ms", GREEN, "ITL p50"),
        ("itl_p99_ms", ORANGE, "ITL p99"),
    ):
        levels.plot(
            at, [_median(p.figures[name]) for p in results.points], "o-", color=color, label=label, markersize=3
        )
    levels.axvline(results.knee, color=ORANGE, linewidth=0.8, linestyle=":")
    levels.set(xlabel="requests in flight", ylabel="ms", xscale="log", yscale="log")
    levels.set_xticks(at, [str(level) for level in at])
    levels.minorticks_off()
    levels.legend(fontsize=8, frameon=False)
    _save(figure, path)


def plot_ablation(results: AblationResults, path: Path) -> None:
    """Bars of the effects on throughput, alone and in the full system; next to them the ladder on the mixed load."""
    figure, (bars, rungs) = _figure(4.0, columns=2)
    names = [effect.technique for effect in results.effects]
    rows = list(range(len(names)))
    for shift, label, color in ((-0.2, "alone", BLUE), (0.2, "in the full system", ORANGE)):
        figures = [
            effect.alone["out_tok_s"] if label == "alone" else (effect.full or {}).get("out_tok_s")
            for effect in results.effects
        ]
        values = [_median(f) for f in figures]
        bars.barh([row + shift for row in rows], values, 0.38, color=color, label=label, xerr=_errors(figures))
    bars.axvline(1, color=GREY, linewidth=0.8)
    bars.set_yticks(rows, names, fontsize=8)
    bars.invert_yaxis()
    bars.set(xlabel="throughput, times without", xscale="log")
    bars.legend(fontsize=8, frameon=False)
    ladder = [rung for rung in results.ladder if not rung.small]
    speed = [rung.figures["out_tok_s"] for rung in ladder]
    steps = list(range(len(ladder)))
    rungs.bar(steps, [_median(s) for s in speed], color=GREEN, yerr=_errors(speed))
    rungs.set_xticks(steps, [("+ " if step else "") + rung.technique for step, rung in enumerate(ladder)], fontsize=7)
    rungs.tick_params(axis="x", rotation=60)
    rungs.set(ylabel="output tokens/s")
    _save(figure, path)


def plot_peers(results: PeerResults, path: Path) -> None:
    """Output tokens per second of every system at each concurrency, in process and over HTTP."""
    figure, axes = _figure(3.4, columns=2)
    for axis, (transport, title) in zip(axes, (("in process", "in process"), ("http", "over HTTP")), strict=True):
        chosen = [s for s in results.systems if s.transport == transport and s.load in STREAM_LOADS]
        _grouped(axis, chosen)
        axis.set(title=title, xlabel="requests in flight", ylabel="output tokens/s")
    _save(figure, path)


def _grouped(axis: Axes, systems: Sequence[SystemResult]) -> None:
    """One group of bars per concurrency, one colour per system, ours last."""
    levels = sorted({system.concurrency for system in systems})
    names = sorted({system.system for system in systems}, key=lambda name: (name == OURS, name))
    colors = dict(zip(names, (GREY, GREEN, ORANGE), strict=False)) | {OURS: BLUE}
    width = 0.8 / max(1, len(names))
    for position, name in enumerate(names):
        own = {system.concurrency: system.figures["out_tok_s"] for system in systems if system.system == name}
        figures = [own.get(level) for level in levels]
        at = [index + (position - (len(names) - 1) / 2) * width for index in range(len(levels))]
        axis.bar(at, [_median(f) for f in figures], width, label=name, color=colors[name], yerr=_errors(figures))
    axis.set_xticks(range(len(levels)), [str(level) for level in levels])
    if names:
        axis.legend(fontsize=8, frameon=False)


def draw_plots(folder: Path, images: Path) -> list[Path]:
    """One PNG in `images` for each finished measurement of `folder` that has a plot. Raises `MeasurementError`."""
    drawn = []
    for name, draw in _PLOTS.items():
        if (measurement := read_finished(folder, name)) is not None:
            path = images / f"{name}.png"
            draw(measurement, path)
            drawn.append(path)
    return drawn


def _sweep(measurement: Measurement, path: Path) -> None:
    plot_sweep(msgspec.convert(measurement.results, SweepResults), path)


def _peers(measurement: Measurement, path: Path) -> None:
    plot_peers(peer_results_of(measurement.rows), path)


def _ablation(measurement: Measurement, path: Path) -> None:
    plot_ablation(msgspec.convert(measurement.results, AblationResults), path)


_PLOTS = {"sweep": _sweep, "peers": _peers, "ablation": _ablation}
