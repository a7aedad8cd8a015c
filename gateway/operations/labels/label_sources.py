"""Where labels come from here, in a sentence: at the start, in `aio init` and `aio check`, on the quality page, in
`/health/ready`."""

from typing import TYPE_CHECKING

from gateway.base.settings import Settings
from quality.verification.sampling import SAVING_SHARE, START_SHARE

if TYPE_CHECKING:
    from quality.judges.calibration import Calibration
    from quality.judges.self_calibration import JudgeState
    from tiers.catalog.catalog import Catalog

# The share of the time for which verification may keep local models busy.
MACHINE_SHARE = 0.5
_BY_RULE = "Quality labels come from checks of JSON, code, tool calls and exact answers, and from feedback"


def has_idle_time(settings: Settings, catalog: "Catalog") -> bool:
    """Whether a cold start may have idle time of one's own machines, as their prices are on no bill."""
    return catalog.is_unbilled and settings.cold_start_usd > 0


def cold_start_cap(settings: Settings, catalog: "Catalog") -> float:
    """The US dollars a day that a cold start may cost beyond the budget; 0 where it is switched off.

    Prices that are on no bill say how tiers compare. There a cold start may have the machine's time instead, of which
    `MACHINE_SHARE` and `AIO_VERIFICATION_MOST_USD` are the bounds.
    """
    return settings.verification_most_usd if has_idle_time(settings, catalog) else settings.cold_start_usd


def judging_cap(settings: Settings, catalog: "Catalog") -> float:
    """The most that the test of a strongest tier as a judge may cost, in US dollars."""
    return cold_start_cap(settings, catalog) / 2


def budget_text(settings: Settings, catalog: "Catalog") -> str:
    """Return what verification may cost; empty where it is switched off."""
    if not settings.verifies:
        return ""
    beyond = f"${settings.cold_start_usd:g}"
    start = START_SHARE * settings.cold_start_usd
    own = f". A team's or lone key's traffic is verified for the same shares of its own, and once for ${start:g} more"
    if has_idle_time(settings, catalog):
        beyond, own = (
            "idle time of this machine (its models are on no bill, so AIO_COLD_START_USD only switches it)",
            "",
        )
    return (
        f"Verification costs at most {settings.verification_budget:.0%} of serving or {SAVING_SHARE:.0%} of what "
        f"routing saves against the strongest tier, whichever is more, and {beyond} beyond while "
        f"little is known: never more than ${settings.verification_most_usd:g} a day (AIO_VERIFICATION_MOST_USD){own}. "
        f"It keeps local models busy for at most {MACHINE_SHARE:.0%} of the time, and stops for a request"
    )


def labels_text(
    settings: Settings, catalog: "Catalog", judge: "JudgeState | None" = None, *, costs: bool = True
) -> str:
    """Return what makes labels, and what would add more. `judge`: how the judge of open answers stands, None where that
    is not known. Without `costs` it is for everybody to read."""
    if not settings.store_texts:
        return "No answer is verified, and feedback is stored but not learned from, because AIO_STORE_TEXTS is false"
    if not settings.verifies:
        return "Quality labels come from feedback alone, because verification is switched off"
    cap = judging_cap(settings, catalog)
    if judge is not None and judge.calibration is not None:
        return f"{_BY_RULE}; {_decided(judge)}"
    if not cap:
        return f"{_BY_RULE}; open answers get none until `aio quality calibrate`, because AIO_COLD_START_USD is 0"
    spent = f", for ${judge.spent_usd:.2f} of at most ${cap:.2f}" if judge is not None and costs else ""
    if judge is not None and judge.state == "testing":
        return (
            f"{_BY_RULE}; drawn open answers wait for the strongest tier, which is being tested as their judge "
            f"({judge.pairs} pairs so far{spent})"
        )
    if judge is not None and judge.state == "capped":
        return (
            f"{_BY_RULE}; open answers get none, because the test of the strongest tier as their judge reached its cap "
            f"after {judge.pairs} pairs{spent}: a higher AIO_COLD_START_USD lets it go on"
        )
    most = ""
    if costs:
        most = ", in idle time" if catalog.is_unbilled else f", for at most ${cap:.2f}"
    return (
        f"{_BY_RULE}; open answers get some once the strongest tier has passed a test as their judge, and the first "
        f"that is drawn starts it{most} (AIO_COLD_START_USD=0: no test)"
    )


def _decided(judge: "JudgeState") -> str:
    calibration = judge.calibration
    assert calibration is not None
    right = _reliability(calibration)
    if calibration.trusted:
        length = ", which reads answers filled up to one length" if calibration.prefers_a_length else ""
        return (
            f"for open answers from the strongest tier as a judge{length} ({right}, so a label weighs "
            f"{calibration.weight:.2f}); a higher AIO_SAMPLING_RATE and AIO_VERIFICATION_BUDGET add more"
        )
    return (
        f"open answers get none, because the strongest tier is refused as their judge ({right}): a stronger last tier "
        "or feedback adds them"
    )


def _reliability(calibration: "Calibration") -> str:
    """How often it is right, and by which pairs."""
    if not calibration.judged:
        return f"it judged none of {calibration.abstained} {calibration.pairs} pairs as it was asked to"
    tested = f"{calibration.judged} {calibration.pairs} pairs"
    if (use := calibration.in_use) is None:
        return f"right about {calibration.balanced_accuracy:.0%} of {tested}"
    counts = {"checked": use.pairs.checked.total, "reviewed": use.pairs.reviewed.total}
    others = "".join(f"{count} {how} answers and " for how, count in counts.items() if count)
    return f"right in {calibration.balanced_accuracy:.0%} [{use.low:.0%}, {use.high:.0%}] by {others}a test on {tested}"
