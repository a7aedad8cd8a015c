"""Plots of a study as small PNG files. matplotlib is a development dependency, imported only here."""

from collections.abc import Sequence
from pathlib import Path

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from quality.laboratory.run import RunResult

matplotlib.use("Agg")

# Colours that keep apart for colour-blind readers (Okabe and Ito 2008).
_COLOURS = {"repair": "#E69F00", "retraining": "#0072B2", "whole": "#009E73"}
_SCENARIOS = ("new_domain", "new_domain_choice", "tier_degrades")


def draw_plots(results: Sequence[RunResult], folder: Path) -> list[Path]:
    """Quality on the shifted prompts day by day, and when alarms came; only of what was run."""
    shown = [name for name in _SCENARIOS if any(r.scenario == name for r in results)]
    if not shown:
        return []
    folder.mkdir(parents=True, exist_ok=True)
    figure = Figure(figsize=(8.0, 2.8), dpi=90, layout="constrained")
    for place, name in enumerate(shown, start=1):
        axes = figure.add_subplot(1, len(shown), place)
        _days(axes, name, [r for r in results if r.scenario == name])
    path = folder / "quality-lab-days.png"
    figure.savefig(path, metadata={"Software": ""})
    return [path]


def _days(axes: Axes, name: str, runs: Sequence[RunResult]) -> None:
    for arm in dict.fromkeys(r.arm for r in runs):
        curves = np.array([[day.shift_quality for day in r.days] for r in runs if r.arm == arm])
        days = np.arange(1, curves.shape[1] + 1)
        axes.plot(days, curves.mean(axis=0), color=_COLOURS[arm], label=arm, linewidth=1.5)
        low, high = np.quantile(curves, [0.1, 0.9], axis=0)
        axes.fill_between(days, low, high, color=_COLOURS[arm], alpha=0.15, linewidth=0)
    oracle = [r.oracle.shift_quality for r in runs if r.oracle is not None]
    axes.axhline(float(np.mean(oracle)), color="#7F7F7F", linewidth=0.8, linestyle="--", label="oracle")
    axes.axhline(float(np.mean([r.frozen.shift_quality for r in runs])), color="#7F7F7F", linewidth=0.8, label="frozen")
    axes.set_title(name, fontsize=8)
    axes.set_xlabel("day", fontsize=7)
    axes.set_ylabel("no worse, fresh prompts of the shift", fontsize=7)
    axes.tick_params(labelsize=7)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(fontsize=6, frameon=False)
