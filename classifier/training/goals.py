"""The goals of the classifier beside what an evaluation reached, each with the best simple predictor."""

from collections.abc import Callable, Sequence

from classifier.training.evaluation import Evaluation
from classifier.training.evaluation_tables import ABSENT, markdown, plain, points, signed
from classifier.training.pair_routing import GAIN
from classifier.training.probabilities import ProbabilityMetrics
from classifier.training.registered import DOMAIN_LABEL, SHIPPED
from classifier.training.routing import Estimate
from classifier.training.simple_predictors import OtherModels

# (what, subset, head, within domain, goal within 1 ms, goal for any encoder)
_RANKING = (
    ("RouteLLM, AUC within domain", "routellm", "correct_2", True, 0.60, 0.63),
    ("RouteLLM, AUC pooled", "routellm", "correct_2", False, 0.73, 0.75),
    ("LLMRouter tier 1, AUC within domain", "llmrouter", "correct_1", True, 0.59, 0.61),
)


def goals_table(evaluation: Evaluation) -> str:
    """One row per goal: the shipped artefact with its interval, the best simple rows, the goals."""
    rows = [
        _ranking_row(evaluation, title, subset, head, within, fast, any_)
        for title, subset, head, within, fast, any_ in _RANKING
    ]
    rows.append(_saving_row(evaluation))
    rows += _calibration_rows(evaluation)
    rows += _unseen_rows(evaluation)
    head = ["figure", "shipped", "best simple row within 1 ms", "best row at any cost", "goal within 1 ms"]
    return markdown([*head, "goal, any encoder"], rows)


def _ranking_row(
    evaluation: Evaluation, title: str, subset: str, head: str, within: bool, fast: float, any_cost: float
) -> list[str]:
    def value(m: ProbabilityMetrics) -> Estimate | None:
        return m.auc_within if within else m.auc

    found = [m for m in evaluation.test.probabilities if (m.subset, m.head) == (subset, head)]
    ours = next((value(m) for m in found if m.predictor == SHIPPED), None)
    rivals = [m for m in found if m.predictor not in (SHIPPED, DOMAIN_LABEL, OtherModels.name)]
    simple = [m for m in rivals if m.predictor in evaluation.within_1_ms]
    return [title, plain(ours), _best(simple, value), _best(rivals, value), f"≥ {fast:.2f}", f"≥ {any_cost:.2f}"]


def _best(found: Sequence[ProbabilityMetrics], value: Callable[[ProbabilityMetrics], Estimate | None]) -> str:
    known = [(v.value, m.predictor) for m in found if (v := value(m)) is not None]
    if not known:
        return ABSENT
    best, predictor = max(known)
    return f"{best:.3f} ({predictor})"


def _saving_row(evaluation: Evaluation) -> list[str]:
    rows = [r for r in evaluation.test.pairs if r.subset == "routellm" and r.ranking == GAIN]
    ours = next((r for r in rows if r.predictor == SHIPPED), None)
    others = [r for r in rows if r.predictor not in (SHIPPED, DOMAIN_LABEL, OtherModels.name)]
    simple = [r for r in others if r.predictor in evaluation.within_1_ms]

    def best(candidates: Sequence[object]) -> str:
        known = [(r.saving_over_domain.value, r) for r in others if r in candidates and r.saving_over_domain]
        if not known:
            return ABSENT
        over, row = max(known, key=lambda pair: pair[0])
        return f"{100 * over:+.1f} ({row.predictor})"

    mine = ABSENT if ours is None else points(ours.saving_over_domain)
    title = "RouteLLM, saving at 95 % by gain minus the domain label's, points"
    return [title, mine, best(simple), best(others), "above 0, interval too", "the same, by more"]


def _calibration_rows(evaluation: Evaluation) -> list[list[str]]:
    found = []
    for subset, head in (("routellm", "correct_2"), ("routellm", "no_worse_2"), ("llmrouter", "no_worse_1")):
        m = next(
            (m for m in evaluation.test.probabilities if (m.subset, m.head, m.predictor) == (subset, head, SHIPPED)),
            None,
        )
        if m is None:
            continue
        shown = f"{plain(m.slope, 2)}; {m.ece:.3f} / {m.ece_band:.3f}"
        goal = "0.9 to 1.1; within the band"
        found.append([f"{subset} {head}, slope; ECE / perfect model's 95 %", shown, ABSENT, ABSENT, goal, goal])
    return found


def _unseen_rows(evaluation: Evaluation) -> list[list[str]]:
    if evaluation.unseen is None:
        return []
    found = [
        [f"unseen domains, novelty AUC ({n.subset})", plain(n.auc), ABSENT, ABSENT, "≥ 0.80", "≥ 0.80"]
        for n in evaluation.unseen.novelty
    ]
    labelled = [m for m in evaluation.unseen.labelled if m.head.startswith("correct")]
    below = sum(m.difference.value < 0 for m in labelled)
    worst = max(labelled, key=lambda m: m.difference.value, default=None)
    if worst is not None:
        shown = f"below in {below} of {len(labelled)} domains; worst {signed(worst.difference)}"
        found.append(["unseen, Brier with 100 labels minus their rate's", shown, ABSENT, ABSENT, "below 0", "below 0"])
    return found
