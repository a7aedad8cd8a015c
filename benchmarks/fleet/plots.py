"""Fleets over time as a small PNG. matplotlib is a development dependency, imported only here."""

from collections.abc import Sequence
from pathlib import Path

import matplotlib
from matplotlib.figure import Figure

from benchmarks.fleet.comparison import REACTIVE, Comparison

matplotlib.use("Agg")
# Colours that colour-blind readers can distinguish (Okabe and Ito 2008).
_COLOURS = {"reactive, ": "#D55E00", "predictive for ": "#0072B2", "oracle for ": "#009E73"}


def plot_comparisons(comparisons: Sequence[Comparison], path: Path, against: str = REACTIVE[0]) -> None:
    """Plot replicas ordered over time on each trace: one reactive rule, the predictive one of equal cost, and the
    oracle."""
    figure = Figure(figsize=(8.0, 2.6 * len(comparisons)), dpi=110, layout="constrained")
    for place, each in enumerate(comparisons, start=1):
        axis = figure.add_subplot(len(comparisons), 1, place)
        axis.spines[["top", "right"]].set_visible(False)
        for prefix, colour in _COLOURS.items():
            sizes = [size for size in each.sizes[prefix + against] if each.since_s <= size[0] <= each.until_s]
            times, ordered = [at for at, _, _ in sizes], [number for _, number, _ in sizes]
            axis.step(times, ordered, where="post", color=colour, linewidth=1.2, label=(prefix + against).strip())
        axis.set(title=f"{each.trace}, {each.profile}", xlabel="s", ylabel="replicas", ylim=(0, None))
        axis.legend(fontsize=7, frameon=False)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, metadata={"Software": ""})
