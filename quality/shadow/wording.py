"""The shadow report in sentences, for people who decide whether to switch routing on."""

from quality.estimates.traffic import dollars
from quality.shadow.figures import FEWEST, Estimate, ShadowReport


def in_words(report: ShadowReport) -> list[str]:
    """Return sentences: the saving, the quality, what is too little to decide by, and what knowing more would cost."""
    if not report.requests:
        return ["No request has been answered in observe mode yet: aio knobs routing mode=observe starts it."]
    found = [_saving(report), _quality(report)]
    if not report.enough:
        found.append(
            f"That is too little to decide by: {_counted(report.judged, 'answer')} "
            f"{'has' if report.judged == 1 else 'have'} been judged, and {FEWEST} are needed at least."
        )
    found += _troubles(report)
    if report.same < report.requests:
        found.append(_precision(report))
    return found


def _saving(report: ShadowReport) -> str:
    head = f"On your last {_counted(report.requests, 'request')} routing would have cost"
    if report.saving is None:
        return f"{head} {dollars(report.would_be_usd)}; the given answers cost nothing, so there is nothing to save."
    text = f"{head} {less(report.saving)}: {dollars(report.would_be_usd)} instead of {dollars(report.paid_usd)}"
    if report.saving_with_checks is not None and report.verification_usd > 0:
        with_checks = less(Estimate(value=report.saving_with_checks))
        text += f", and {with_checks} with the {dollars(report.verification_usd)} that verification cost"
    if report.same == report.requests:
        return f"{text}. It would have taken the tiers that answered."
    if not report.priced:
        text += " (predicted: no shadow answer has measured it yet)"
    return f"{text}."


def _quality(report: ShadowReport) -> str:
    if report.quality is None:
        return "Judged quality: not known yet, because no shadow answer has been judged."
    text = f"Judged quality: {report.quality.value:.1%}{_interval(report.quality)} of the answers no worse"
    if report.judged:
        text += f", by {_counted(report.judged, 'judged answer')} of which {report.worse} {_were(report.worse)} worse"
    if report.same:
        text += f"; for {report.same / report.requests:.0%} of the requests routing would have changed nothing"
    return f"{text}."


def _troubles(report: ShadowReport) -> list[str]:
    shadows, found = report.shadows, []
    if shadows.waiting:
        found.append(f"{_counted(shadows.waiting, 'shadow answer')} {_were(shadows.waiting, 'is', 'are')} waiting.")
    if shadows.undecided:
        found.append(
            f"{_counted(shadows.undecided, 'shadow answer')} got no verdict, because an answer was cut off, opinions "
            "differed or no judge that is trusted decides such answers: aio quality calibrate measures the judges."
        )
    if shadows.failed:
        because = f", for example: {shadows.error}" if shadows.error else ""
        found.append(f"{_counted(shadows.failed, 'shadow answer')} failed{because or '.'}")
    return found


def _precision(report: ShadowReport) -> str:
    needed = report.precision
    aim = "For a first figure it takes" if report.judged < FEWEST else "For intervals half as wide it takes"
    text = f"{aim} {needed.verdicts:,} more verdicts"
    if needed.cost_usd is not None:
        text += f", {dollars(needed.cost_usd)} at the price so far"
    if needed.days is not None:
        text += f" and {_days(needed.days)} at the pace so far"
    return f"{text}; {dollars(needed.left_usd)} of the budget of {dollars(needed.budget_usd)} a day is left."


def less(saving: Estimate) -> str:
    """Format a saving as "62.1% less [58.0%, 66.2%]", or as an increase."""
    if saving.value >= 0:
        return f"{saving.value:.1%} less{_interval(saving)}"
    low, high = (None if bound is None else -bound for bound in (saving.high, saving.low))
    return f"{-saving.value:.1%} more{_interval(Estimate(value=-saving.value, low=low, high=high))}"


def _interval(one: Estimate) -> str:
    return "" if one.low is None or one.high is None else f" [{one.low:.1%}, {one.high:.1%}]"


def _counted(count: int, name: str) -> str:
    return f"{count:,} {name}" if count == 1 else f"{count:,} {name}s"


def _were(count: int, one: str = "was", more: str = "were") -> str:
    return one if count == 1 else more


def _days(days: float) -> str:
    return f"{days:,.0f} days" if days >= 2 else f"{days * 24:,.0f} hours" if days >= 2 / 24 else "less than two hours"
