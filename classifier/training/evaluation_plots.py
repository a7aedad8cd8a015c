"""Plots of an evaluation as small PNG files. matplotlib is a development dependency, imported only here."""

from pathlib import Path

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from classifier.training.evaluation import Evaluation
from classifier.training.ladder_routing import LABELS, CostQualityCurve
from classifier.training.probabilities import Reliability
from classifier.training.registered import DOMAIN_LABEL, SHIPPED

matplotlib.use("Agg")

# Colours that keep apart for colour-blind readers (Okabe and Ito 2008).
BLUE, ORANGE, GREEN, GREY, PURPLE = "#0072B2", "#D55E00", "#009E73", "#7F7F7F", "#CC79A7"
_WIDTH, _DPI = 8.0, 90
_COLOURS = {SHIPPED: BLUE, DOMAIN_LABEL: ORANGE}


def draw_plots(evaluation: Evaluation, folder: Path) -> list[Path]:
    """Reliability diagrams, cost-quality curves of each ladder, and the learning curve if there is one."""
    folder.mkdir(parents=True, exist_ok=True)
    drawn = []
    if evaluation.test.reliability:
        drawn.append(_save(reliability_figure(evaluation.test.reliability), folder / "classifier-reliability.png"))
    if evaluation.test.curves:
        drawn.append(_save(cost_quality_figure(evaluation.test.curves), folder / "classifier-cost-quality.png"))
    if evaluation.learning:
        drawn.append(_save(learning_figure(evaluation), folder / "classifier-learning.png"))
    return drawn


def _grid(rows: int, columns: int, height: float) -> tuple[Figure, list[Axes]]:
    figure = Figure(figsize=(_WIDTH, height), dpi=_DPI, layout="constrained")
    axes = [figure.add_subplot(rows, columns, i + 1) for i in range(rows * columns)]
    for each in axes:
        each.spines[["top", "right"]].set_visible(False)
        each.grid(axis="both", linewidth=0.4, alpha=0.6)
        each.set_axisbelow(True)
        each.tick_params(labelsize=7)
    return figure, axes


def _save(figure: Figure, path: Path) -> Path:
    figure.savefig(path, metadata={"Software": ""})
    return path


def reliability_figure(diagrams: list[Reliability]) -> Figure:
    """Rates over predicted probabilities in tenths of the rows; bars are where a perfect model's rate falls."""
    whole = max(diagrams, key=lambda d: sum(b.rows for b in d.bins)).subset
    ladder = [d.subset for d in diagrams]
    widest = max(dict.fromkeys(ladder), key=ladder.count)
    chosen = [d for d in diagrams if d.subset == widest][:7]
    chosen += [d for d in diagrams if d.subset == whole and d.subset != widest][:2]
    columns = 3
    rows = -(-len(chosen) // columns)
    figure, axes = _grid(rows, columns, 2.4 * rows)
    for axis, diagram in zip(axes, chosen, strict=False):
        x = [b.predicted for b in diagram.bins]
        axis.plot([0, 1], [0, 1], color=GREY, linewidth=0.8)
        spread = [[b.predicted - b.low for b in diagram.bins], [b.high - b.predicted for b in diagram.bins]]
        axis.errorbar(x, x, yerr=spread, fmt="none", ecolor=GREY, elinewidth=3, alpha=0.4)
        axis.plot(x, [b.observed for b in diagram.bins], "o-", color=BLUE, markersize=3, linewidth=0.8)
        axis.set_title(f"{diagram.subset}: {diagram.head}", fontsize=8)
        axis.set(xlim=(0, 1), ylim=(0, 1))
    for axis in axes[len(chosen) :]:
        axis.set_visible(False)
    figure.supxlabel("predicted", fontsize=8)
    figure.supylabel("observed", fontsize=8)
    return figure


def cost_quality_figure(curves: list[CostQualityCurve]) -> Figure:
    """Quality over cost share: a row of panels per ladder, a column per label; lambda solid, tau dotted."""
    pooled = dict.fromkeys(c.subset for c in curves)
    subsets = [name for name in pooled if name in ("llmrouter", "routellm")] or list(pooled)[:2]
    figure, axes = _grid(len(subsets), len(LABELS), 2.9 * len(subsets))
    others = [name for name in dict.fromkeys(c.predictor for c in curves if c.rule != "oracle") if name not in _COLOURS]
    colours = _COLOURS | dict(zip(others, (GREEN, PURPLE, GREY), strict=False))
    for place, axis in enumerate(axes):
        subset, label = subsets[place // len(LABELS)], LABELS[place % len(LABELS)]
        for curve in curves:
            if (curve.subset, curve.label) != (subset, label):
                continue
            x, y = [p[0] for p in curve.points], [p[1] for p in curve.points]
            if curve.rule == "oracle":
                axis.plot(x, y, "*", color="black", markersize=7, label=curve.predictor)
                continue
            solid = curve.rule == "lambda"
            axis.plot(
                x,
                y,
                color=colours.get(curve.predictor, GREY),
                linewidth=1.4 if curve.predictor == SHIPPED else 0.9,
                linestyle="-" if solid else ":",
                label=curve.predictor if solid else None,
            )
        axis.set_title(f"{subset}, label {label}", fontsize=8)
        axis.set_xlabel("cost over always the strongest tier", fontsize=7)
        axis.set_ylabel("quality", fontsize=7)
    axes[0].legend(fontsize=6, frameon=False, loc="lower right")
    return figure


def learning_figure(evaluation: Evaluation) -> Figure:
    """AUC pooled and within domain over the number of training rows, with intervals."""
    columns = list(dict.fromkeys((p.subset, p.head) for p in evaluation.learning))
    figure, axes = _grid(1, len(columns), 2.8)
    for axis, column in zip(axes, columns, strict=True):
        points = [p for p in evaluation.learning if (p.subset, p.head) == column]
        x = [p.labels for p in points]
        for name, colour in (("pooled", BLUE), ("within domain", ORANGE)):
            values = [p.auc if name == "pooled" else p.auc_within for p in points]
            spread = [[v.value - v.low for v in values], [v.high - v.value for v in values]]
            axis.errorbar(x, [v.value for v in values], yerr=spread, fmt="o-", color=colour, markersize=3, label=name)
        axis.set_title(f"{column[0]}: {column[1]}", fontsize=8)
        axis.set(xscale="log")
        axis.set_xlabel("training rows", fontsize=7)
        axis.set_ylabel("AUC", fontsize=7)
    axes[0].legend(fontsize=7, frameon=False)
    return figure
