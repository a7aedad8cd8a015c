"""The tables of an evaluation in Markdown, by name: what the command prints and what the model card is filled with."""

from collections.abc import Callable, Iterable, Sequence

from classifier.training.evaluation import Evaluation, Tables
from classifier.training.ladder_routing import AIMS, LABELS, RULES, LadderRouting
from classifier.training.pair_routing import GAIN, WEAK, PairRouting
from classifier.training.probabilities import ProbabilityMetrics
from classifier.training.registered import DOMAIN_LABEL, SHIPPED
from classifier.training.routing import Estimate
from classifier.training.subsets import POOLED

ABSENT = "–"


def markdown(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table; cells are the caller's to format."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def plain(value: Estimate | None, digits: int = 3) -> str:
    """value [low, high]."""
    if value is None:
        return ABSENT
    return f"{value.value:.{digits}f} [{value.low:.{digits}f}, {value.high:.{digits}f}]"


def signed(value: Estimate | None, digits: int = 4) -> str:
    """The same with signs, for differences."""
    if value is None:
        return ABSENT
    return f"{value.value:+.{digits}f} [{value.low:+.{digits}f}, {value.high:+.{digits}f}]"


def percent(value: Estimate | None) -> str:
    """value [low, high] in per cent."""
    return ABSENT if value is None else f"{value.value:.0%} [{value.low:.0%}, {value.high:.0%}]"


def points(value: Estimate | None) -> str:
    """A difference of shares in points of a hundred."""
    if value is None:
        return ABSENT
    return f"{100 * value.value:+.1f} [{100 * value.low:+.1f}, {100 * value.high:+.1f}]"


def names(values: Iterable[str]) -> list[str]:
    """Each once, in order of appearance."""
    return list(dict.fromkeys(values))


def ranking_table(tables: Tables) -> str:
    """AUC pooled / within domain of every predictor, `correct_k` on each subset."""
    found = {(m.predictor, m.subset, m.head): m for m in tables.probabilities if m.head.startswith("correct")}
    columns = names_of_columns(tables.probabilities)
    rows = []
    for predictor in names(m.predictor for m in tables.probabilities):
        cells = [_auc_cell(found.get((predictor, *column))) for column in columns]
        rows.append([bold(predictor), *cells])
    return markdown(["predictor", *(f"{one}, tier {head[-1]}" for one, head in columns)], rows)


def names_of_columns(found: Sequence[ProbabilityMetrics]) -> list[tuple[str, str]]:
    """Subset and head of the columns: the strongest tier's only where the whole ladder is known."""
    pairs = list(dict.fromkeys((m.subset, m.head) for m in found if m.head.startswith("correct")))
    heads = {one: [head for other, head in pairs if other == one] for one, _ in pairs}
    return [(one, head) for one, head in pairs if len(heads[one]) > 2 or head == heads[one][0]]


def _auc_cell(m: ProbabilityMetrics | None) -> str:
    if m is None or m.auc is None:
        return ABSENT
    within = ABSENT if m.auc_within is None else f"{m.auc_within.value:.3f}"
    return f"{m.auc.value:.3f} / {within}"


def bold(predictor: str) -> str:
    """The shipped row stands out."""
    return f"**{predictor}**" if predictor == SHIPPED else predictor


def heads_table(tables: Tables, predictor: str = SHIPPED) -> str:
    """One predictor, every head on every subset, with intervals."""
    rows = [
        [
            m.subset,
            m.head,
            f"{m.rows:,}",
            f"{m.rate:.3f}",
            plain(m.auc),
            signed(m.over_domain, 3),
            plain(m.auc_within),
            f"{m.brier:.4f} / {m.brier_of_rate:.4f}",
            f"{m.ece:.3f} / {m.ece_band:.3f}",
            plain(m.slope, 2),
        ]
        for m in tables.probabilities
        if m.predictor == predictor
    ]
    head = ["rows of", "outcome", "rows", "rate", "AUC", "over the domain label's", "AUC within domain"]
    return markdown([*head, "Brier / of the rate", "ECE / perfect model's 95 %", "slope"], rows)


def calibration_table(tables: Tables) -> str:
    """Brier, ECE beside its band, and slope of every predictor, for the cheapest tier's `correct` of each subset."""
    columns = [c for c in names_of_columns(tables.probabilities) if _first(tables, *c)]
    found = {(m.predictor, m.subset, m.head): m for m in tables.probabilities}
    rows = []
    for predictor in names(m.predictor for m in tables.probabilities):
        cells = []
        for column in columns:
            m = found.get((predictor, *column))
            slope = ABSENT if m is None or m.slope is None else f"{m.slope.value:.2f}"
            cells.append(ABSENT if m is None else f"{m.brier:.4f}, {m.ece:.3f} / {m.ece_band:.3f}, {slope}")
        rows.append([bold(predictor), *cells])
    return markdown(["predictor", *(f"{one}, tier {head[-1]}" for one, head in columns)], rows)


def _first(tables: Tables, one: str, head: str) -> bool:
    return head == next(m.head for m in tables.probabilities if m.subset == one and m.head.startswith("correct"))


def pair_table(tables: Tables, one: str) -> str:
    """Two tiers: gap recovered and saving, ranked by gain and by P(weak right)."""
    chosen = [row for row in tables.pairs if row.subset == one]
    by = {(row.predictor, row.ranking): row for row in chosen}
    rows = []
    for predictor in names(row.predictor for row in chosen):
        gain, weak = by[predictor, GAIN], by[predictor, WEAK]
        rows.append(
            [
                bold(predictor),
                f"{weak.apgr.value:.3f} / {plain(gain.apgr)}",
                f"{weak.saving.value:.0%} / {percent(gain.saving)}",
                points(gain.saving_over_domain),
                _valid_cell(gain),
                points(gain.valid_saving_over_domain),
                points(gain.over_shuffled),
            ]
        )
    head = [
        "predictor",
        "APGR by P(weak right) / by gain",
        "saving at 95 %, the same",
        "minus the domain label's, points",
    ]
    last = [
        "threshold from valid rows: saving, quality",
        "minus the domain label's",
        "half the calls, over shuffled, points",
    ]
    return markdown([*head, *last], rows)


def _valid_cell(row: PairRouting) -> str:
    if row.valid_saving is None or row.valid_quality is None:
        return ABSENT
    return f"{percent(row.valid_saving)}, {row.valid_quality.value:.3f} of the strongest's"


def ladder_table(tables: Tables, one: str, label: str) -> str:
    """All tiers: cost at 95 % of the quality and best utility, both rules."""
    chosen = [row for row in tables.ladder if row.subset == one and row.label == label]
    by = {(row.predictor, row.rule, row.aim): row for row in chosen}
    rows = []
    for predictor in names(row.predictor for row in chosen):
        cells = [_reached(by[predictor, rule, AIMS[1]]) for rule in RULES]
        best = by[predictor, "lambda", AIMS[0]]
        cells += [plain(best.utility), points(best.over_shuffled), points(best.over_domain)]
        cells.append(plain(by[predictor, "tau", AIMS[0]].utility))
        cells.append(" ".join(f"{tier}:{share:.0%}" for tier, share in best.shares.items()))
        rows.append([bold(predictor), *cells])
    head = ["predictor", "lambda: cost, quality of the strongest's", "tau: the same", "best utility, lambda"]
    last = ["over shuffled, points", "over the domain label, points", "best utility, tau", "tiers, lambda"]
    return markdown([*head, *last], rows)


def _reached(row: LadderRouting) -> str:
    return f"{row.cost_share:.2f}, {row.of_strongest:.3f}"


def rules_table(tables: Tables, predictors: Sequence[str] = (SHIPPED, DOMAIN_LABEL)) -> str:
    """Utility of the lambda rule minus the tau rule's."""
    rows = [
        [row.subset, row.label, row.predictor, points(row.difference)]
        for row in tables.rules
        if row.predictor in predictors
    ]
    return markdown(["rows of", "label", "predictor", "lambda minus tau, points of utility"], rows)


def unseen_table(evaluation: Evaluation) -> str:
    """AUC of the cheapest tier's `correct` and APGR by P(weak right), for each domain never trained on."""
    assert evaluation.unseen is not None
    tables = evaluation.unseen.tables
    columns = [name for name in names(m.subset for m in tables.probabilities) if name != POOLED]
    pairs = {(row.predictor, row.subset): row for row in tables.pairs if row.ranking == WEAK}
    rows = []
    for predictor in names(m.predictor for m in tables.probabilities):
        cells = []
        for one in columns:
            m = next(
                (
                    m
                    for m in tables.probabilities
                    if (m.subset, m.predictor) == (one, predictor) and m.head.startswith("correct")
                ),
                None,
            )
            routed = pairs.get((predictor, one))
            gap = ABSENT if routed is None else f"{routed.apgr.value:.3f}"
            cells.append(ABSENT if m is None or m.auc is None else f"{m.auc.value:.3f}, {gap}")
        rows.append([bold(predictor), *cells])
    return markdown(["predictor", *columns], rows)


def novelty_table(evaluation: Evaluation) -> str:
    assert evaluation.unseen is not None
    rows = [
        [n.subset, f"{n.seen:,}", f"{n.unseen:,}", plain(n.auc), f"{n.caught_seen:.0%}", f"{n.caught_unseen:.0%}"]
        for n in evaluation.unseen.novelty
    ]
    head = ["rows of", "seen", "unseen", "AUC of novelty", "seen above the threshold", "unseen above it"]
    return markdown(head, rows)


def fallback_table(evaluation: Evaluation) -> str:
    assert evaluation.unseen is not None
    # Collections as wholes; a source alone says little more.
    shown = {n.subset for n in evaluation.unseen.novelty}
    rows = [
        [
            f"{'seen' if f.seen else 'unseen'}: {f.subset}",
            f.label,
            f.way,
            plain(f.quality),
            f"{f.cost_share:.2f}",
            plain(f.utility),
            points(f.over_never),
            f"{f.fallback_share:.0%}",
        ]
        for f in evaluation.unseen.fallback
        if f.subset in shown
    ]
    head = ["rows of", "label", "falls back", "quality", "cost share", "utility", "over never, points"]
    return markdown([*head, "fell back"], rows)


def labelled_table(evaluation: Evaluation) -> str:
    assert evaluation.unseen is not None
    rows = [
        [
            m.domain,
            m.head,
            f"{m.rows:,}",
            f"{m.without:.4f}",
            f"{m.with_labels:.4f}",
            f"{m.base_rate:.4f}",
            signed(m.difference),
        ]
        for m in evaluation.unseen.labelled
    ]
    head = ["domain", "outcome", "rows", "Brier without labels", "with 100 in the memory", "of the 100 labels' rate"]
    return markdown([*head, "with minus rate"], rows)


def learning_table(evaluation: Evaluation) -> str:
    columns = list(dict.fromkeys((p.subset, p.head) for p in evaluation.learning))
    found = {(p.labels, p.subset, p.head): p for p in evaluation.learning}
    rows = []
    for labels in dict.fromkeys(p.labels for p in evaluation.learning):
        cells = []
        for column in columns:
            p = found[labels, *column]
            cells.append(f"{plain(p.auc)} / {plain(p.auc_within)}")
        rows.append([f"{labels:,}", *cells])
    return markdown(["training rows", *(f"{one}, tier {head[-1]}" for one, head in columns)], rows)


def ceiling_table(evaluation: Evaluation) -> str:
    """Beside what was reached: other models' outcomes, and outcomes drawn from the predictors' own probabilities."""
    reached = {(m.predictor, m.subset, m.head): m for m in evaluation.test.probabilities}
    rows = []
    for s in evaluation.sharpness:
        if s.predictor != SHIPPED or (s.subset, s.head) not in names_of_columns(evaluation.test.probabilities):
            continue
        ours, others = (
            _auc_cell(reached.get((name, s.subset, s.head))) for name in (SHIPPED, "other models' outcomes")
        )
        rows.append([f"{s.subset}, tier {s.head[-1]}", ours, f"{s.auc:.3f} / {s.auc_within:.3f}", others])
    head = ["outcome", "reached", "outcomes drawn from our own probabilities", "knowing other models' outcomes"]
    return markdown(head, rows)


def repeats_table(evaluation: Evaluation) -> str:
    rows = [[r.family, f"`{r.model}`", f"{r.rows:,}", str(r.split)] for r in evaluation.repeats]
    return markdown(["collection", "model", "rows", "with a score between 0 and 1 (repeats that disagreed)"], rows)


def costs_table(evaluation: Evaluation) -> str:
    rows = [[c.group, f"{c.median_us:,.0f}", f"{c.p99_us:,.0f}"] for c in evaluation.costs]
    rows += [
        [f"the whole decision, {name}", f"{1000 * median:,.0f}", f"{1000 * p99:,.0f}"]
        for name, (median, p99) in evaluation.decision_ms.items()
    ]
    return markdown(["group", "median µs", "p99 µs"], rows)


def verdict(evaluation: Evaluation) -> str:
    """Whether the gates let the artefact serve."""
    targets = sum(check.lowered for check in evaluation.targets)
    checked = sum(check.prompts for check in evaluation.targets)
    lowered = f"A higher quality target lowered a tier for {targets} of {checked:,} prompts and rules."
    if not evaluation.refusals:
        return f"The gates let `{evaluation.version}` serve. {lowered}"
    return "\n".join([f"The gates refuse `{evaluation.version}`:", *(f"- {r}" for r in evaluation.refusals), lowered])


def made_on(evaluation: Evaluation) -> str:
    """What was measured, when and on what."""
    counts = ", ".join(f"{n:,} {name}" for name, n in evaluation.rows.items())
    refitted = (
        f" Unseen domains and the learning curve are of an earlier recipe, that of `{evaluation.refitted}`."
        if evaluation.refitted
        else ""
    )
    return (
        f"`{evaluation.version}` (encoder {evaluation.encoder}), split `{evaluation.split}`, {evaluation.date}, "
        f"{evaluation.machine}; rows: {counts}; data SHA-256 {evaluation.data_sha256[:12]}.{refitted}"
    )


def families_of(tables: Tables) -> list[str]:
    """Subsets with a routing table."""
    return names(row.subset for row in tables.pairs)


def all_tables(evaluation: Evaluation) -> dict[str, str]:
    """Every table by the name of its place in the model card."""
    test = evaluation.test
    found = {
        "made-on": made_on(evaluation),
        "verdict": verdict(evaluation),
        "ranking": ranking_table(test),
        "heads": heads_table(test),
        "calibration": calibration_table(test),
        "pairs": "\n\n".join(f"**{one}**\n\n{pair_table(test, one)}" for one in families_of(test)),
        "ladder": "\n\n".join(
            f"**{one}, label {label}**\n\n{ladder_table(test, one, label)}"
            for one in names(row.subset for row in test.ladder)
            for label in LABELS
        ),
        "rules": rules_table(test),
        "repeats": repeats_table(evaluation),
        "ceiling": ceiling_table(evaluation),
        "costs": costs_table(evaluation),
    }
    if evaluation.unseen is not None:
        unseen = evaluation.unseen.tables
        found["unseen"] = unseen_table(evaluation)
        found["unseen-heads"] = heads_table(unseen)
        found["unseen-ladder"] = "\n\n".join(
            f"**{one}, label {label}**\n\n{ladder_table(unseen, one, label)}"
            for one in names(row.subset for row in unseen.ladder)
            for label in LABELS
        )
        optional: dict[str, Callable[[Evaluation], str]] = {
            "novelty": novelty_table,
            "fallback": fallback_table,
            "labelled": labelled_table,
        }
        found |= {name: make(evaluation) for name, make in optional.items()}
    if evaluation.learning:
        found["learning"] = learning_table(evaluation)
    left = [f"- {name}: {reason}" for name, reason in evaluation.left_out.items()]
    found["left-out"] = "\n".join(left) or "Nothing."
    return found
