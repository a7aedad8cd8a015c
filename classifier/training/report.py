"""The evaluation as text: markdown tables for people, beside the JSON of the same `Report`."""

from collections.abc import Sequence

from classifier.training.evaluate import MODEL_ROW, HeadMetrics, Report, RoutingMetrics
from classifier.training.routing import Estimate


def report_text(report: Report, refusals: Sequence[str]) -> str:
    """All tables of a report, with the verdict first."""
    verdict = "The model may serve." if not refusals else "REFUSED:\n" + "\n".join(f"- {r}" for r in refusals)
    sections = [verdict, f"Default rule: {report.default_rule} (chosen on the valid split)."]
    sections.append("### Probabilities\n\n" + _heads_table(report.heads))
    for name in dict.fromkeys(r.set for r in report.routing):
        for label in dict.fromkeys(r.label for r in report.routing if r.set == name):
            rows = [r for r in report.routing if r.set == name and r.label == label]
            compared = next(c for c in report.rules if c.set == name and c.label == label)
            sections.append(
                f"### Routing, {name}, score = {label}\n\n{_routing_table(rows)}\n\n"
                f"Lambda rule minus tau rule, utility: {_signed(compared.difference)}."
            )
    gaps = [[name, predictor, _plain(value)] for name, predictor, value in report.apgr]
    if gaps:
        sections.append("### APGR, cheapest against strongest tier\n\n" + _table(["set", "predictor", "APGR"], gaps))
    return "\n\n".join(sections) + "\n"


def _heads_table(heads: Sequence[HeadMetrics]) -> str:
    known = {(h.set, h.head): h for h in heads if h.predictor != MODEL_ROW}
    lines = []
    for h in heads:
        if h.predictor != MODEL_ROW:
            continue
        domain = known.get((h.set, h.head))
        lines.append(
            [
                h.set,
                h.head,
                str(h.rows),
                f"{h.rate:.3f}",
                _plain(h.auc),
                f"{domain.auc.value:.3f}" if domain else "",
                _plain(h.auc_within),
                f"{h.brier:.4f} / {h.brier_of_rate:.4f}",
                f"{h.ece:.3f} / {h.ece_band:.3f}",
                f"{h.slope:.2f}",
            ]
        )
    head = ["set", "outcome", "rows", "rate", "AUC", "AUC of the domain's mean", "AUC within domain"]
    return _table([*head, "Brier / of the rate", "ECE / perfect model's 95 %", "slope"], lines)


def _routing_table(rows: Sequence[RoutingMetrics]) -> str:
    lines = [
        [
            r.predictor,
            r.rule if r.parameter is None else f"{r.rule} {r.parameter:.3g}",
            _plain(r.quality),
            f"{r.cost_share:.3f}",
            _plain(r.utility),
            "" if r.parameter is None else _signed(r.gain),
            " ".join(f"{t}:{share:.0%}" for t, share in r.shares.items()),
        ]
        for r in rows
    ]
    head = ["predictor", "rule", "quality", "cost share", "utility", "over shuffled", "tiers"]
    return _table(head, lines)


def _plain(e: Estimate) -> str:
    return f"{e.value:.3f} [{e.low:.3f}, {e.high:.3f}]"


def _signed(e: Estimate) -> str:
    return f"{e.value:+.4f} [{e.low:+.4f}, {e.high:+.4f}]"


def _table(head: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    cells = [head, ["---"] * len(head), *lines]
    return "\n".join("| " + " | ".join(line) + " |" for line in cells)
