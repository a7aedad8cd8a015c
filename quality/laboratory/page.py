"""A study as Markdown: the goals, the scenarios, and the place of both on the page for operators."""

from collections.abc import Callable
from pathlib import Path

from quality.laboratory.report import Figure, ScenarioFigures, Study

BEGIN, END = "<!-- laboratory: begin -->", "<!-- laboratory: end -->"


class PageError(ValueError):
    """The page has no place for the laboratory's tables."""


def goals_table(study: Study) -> str:
    """Each goal with its figure, interval and verdict."""
    rows: list[tuple[str, str, Figure, Callable[[float], bool] | None]] = [
        ("false retrains per 100,000 requests", "at most 1", study.false_retrains_per_100k, _at_most(1.0)),
        ("the sources' fixed rule beside it", "", study.fixed_rule_retrains_per_100k, None),
        (
            "new domain: its verified samples until the alarm, median",
            "at most 150",
            study.detection_samples_median,
            _at_most(150.0),
        ),
        (
            "gap closed by immediate repair alone",
            "at least 50%",
            study.gap_closed_by_promotion,
            lambda value: value >= 0.5,
        ),
        (
            "gap closed by retraining, where a version was promoted",
            "at least 90%",
            study.gap_closed_by_retraining,
            lambda value: value >= 0.9,
        ),
        ("the same over all runs, promoted or not", "", study.gap_closed_by_retraining_all_runs, None),
        *(
            ("what it costs on the new domain then, of the oracle's", "at most 1", one.cost_of_oracle, _at_most(1.0))
            for one in study.scenarios
            if (one.scenario, one.arm) == ("new_domain", "retraining")
        ),
        (
            "judge errs 20%: runs that promoted a worse version",
            "at most 1%",
            study.worse_promotions,
            _at_most(0.01),
        ),
        (
            "verification over serving, mean",
            "at most 5% in every run",
            study.verification_cost_share,
            lambda value: (study.verification_cost_share_max or 0.0) <= 0.05,
        ),
    ]
    lines = ["| figure | goal | measured | 95% interval | of | met |", "| --- | --- | --- | --- | --- | --- |"]
    for name, goal, figure, met in rows:
        verdict = "" if met is None or figure.value is None else ("yes" if met(figure.value) else "**no**")
        lines.append(f"| {name} | {goal} | {_number(figure.value)} | {_interval(figure)} | {figure.of} | {verdict} |")
    return "\n".join(lines)


def scenarios_table(study: Study) -> str:
    """A row for each scenario and the parts of the loop that were at work."""
    lines = [
        "| scenario | at work | runs | quality, cost before | first day after | last day | alarmed, samples | versions "
        "promoted, refused | gap closed | cost, of the oracle's | regret | verification | repair |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    lines += [_row(one) for one in study.scenarios]
    return "\n".join(lines)


def study_text(study: Study) -> str:
    """Both tables and what they are of."""
    peak = study.verification_cost_share_max_of_a_day
    note = (
        f"{study.runs} runs, {study.requests:,} requests. Verification cost at most "
        f"{_number(study.verification_cost_share_max)} of serving in any run, and {_number(peak)} in any trailing day."
    )
    return "\n\n".join([note, goals_table(study), scenarios_table(study)])


def put_on_page(page: Path, study: Study, images: list[str]) -> None:
    """Replace what stands between the page's marks. Raises `PageError`."""
    text = page.read_text(encoding="utf-8")
    if BEGIN not in text or END not in text:
        raise PageError(f"{page} has no {BEGIN} and {END}.")
    head, tail = text.split(BEGIN)[0], text.split(END)[1]
    shown = "\n\n".join([study_text(study), *images])
    page.write_text(f"{head}{BEGIN}\n\n{shown}\n\n{END}{tail}", encoding="utf-8")


def _row(one: ScenarioFigures) -> str:
    pairs = [f"{quality:.3f}, {cost:.2f}" for quality, cost in (one.before, one.shifted, one.last)]
    return (
        f"| {one.scenario} | {one.arm} | {one.runs} | {' | '.join(pairs)} | {one.detected}/{one.runs}, "
        f"{_number(one.samples.value)} | {one.promotions}, {one.refused} | {_number(one.gap_closed.value)} "
        f"{_interval(one.gap_closed)} | {_number(one.cost_of_oracle.value)} | {_number(one.regret.value)} | "
        f"{_number(one.verification_share.value)} | {_number(one.repair_share.value)} |"
    )


def _at_most(bound: float) -> Callable[[float], bool]:
    return lambda value: value <= bound


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.3g}"


def _interval(figure: Figure) -> str:
    return "" if figure.ci is None else f"[{figure.ci[0]:.3g}, {figure.ci[1]:.3g}]"
