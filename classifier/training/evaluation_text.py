"""The evaluation as text for a terminal: every table under its title, the verdict first."""

from classifier.training.evaluation import Evaluation
from classifier.training.evaluation_tables import all_tables

TITLES = {
    "ranking": "AUC pooled / within domain, `correct`",
    "heads": "The shipped artefact, every outcome",
    "calibration": "Brier, ECE / perfect model's 95 %, slope",
    "pairs": "Two tiers: cheapest or strongest",
    "ladder": "All tiers: cost at 95 % of the quality, and best utility; thresholds from valid rows",
    "rules": "Lambda rule minus tau rule",
    "unseen": "Domains never trained on: AUC, APGR",
    "unseen-heads": "Domains never trained on: the recipe, every outcome",
    "unseen-ladder": "Domains never trained on: all tiers",
    "novelty": "Novelty: seen against unseen prompts",
    "fallback": "Falling back",
    "labelled": "A hundred verified labels of an unseen domain",
    "learning": "Learning curve: AUC / within domain",
    "ceiling": "How predictable the outcomes are",
    "repeats": "Repeats",
    "costs": "CPU time of one prompt",
    "left-out": "Left out",
}


def evaluation_text(evaluation: Evaluation) -> str:
    """All tables of the evaluation as Markdown."""
    parts = all_tables(evaluation)
    sections = [f"# {evaluation.version}", parts["verdict"], parts["made-on"]]
    sections += [f"## {title}\n\n{parts[name]}" for name, title in TITLES.items() if name in parts]
    return "\n\n".join(sections) + "\n"
