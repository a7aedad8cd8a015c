"""Whether the server takes requests, and what is missing."""

import msgspec

from gateway.inference.routing.exclusions import WITHOUT_CHATS
from gateway.operations.running import Operations
from gateway.telemetry.objectives.alert_rules import RETRAINING_DAYS
from inference_core.io.background_tasks import task_problems

NOT_READY = "not ready"


class Health(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """`status` is "ok", "degraded" (some tiers take no requests and others do, or a background task failed) or "not
    ready"; `problems` names each missing part, with the reason. `labels`: where they come from, if answers are verified
    here."""

    status: str
    problems: dict[str, str] = {}
    labels: str = ""


def health_of(operations: Operations) -> Health:
    """The state of the whole server, without secrets."""
    problems = operations.problems | task_problems()
    tiers = operations.serving.routing.served.tiers
    down = [str(tier.number) for tier in tiers.values() if not tier.load().healthy]
    if len(down) == len(tiers):
        problems["tiers"] = "no tier takes requests"
    elif down:
        problems["tiers"] = f"these take no requests: {', '.join(down)}"
    if (overdue := _retraining_overdue(operations)) is not None:
        problems["retraining"] = overdue
    loop = operations.quality_loop
    labels = "" if loop is None else loop.labels(costs=False)
    status = NOT_READY if operations.not_ready or len(down) == len(tiers) else "degraded" if problems else "ok"
    # It serves what it can: nothing is missing that will come.
    raw = {f"chats of tier {tier.number}": WITHOUT_CHATS for tier in tiers.values() if not tier.takes_chats}
    return Health(status=status, problems=problems | raw, labels=labels)


def _retraining_overdue(operations: Operations) -> str | None:
    """What the alert says that fires after so many days without a success."""
    loop = operations.quality_loop
    days = None if loop is None else loop.days_without_retraining()
    if loop is None or days is None or days <= RETRAINING_DAYS:
        return None
    said = loop.last_retrainings()
    return f"no successful retraining for {days:.0f} days" + (f"; {said}" if said else "")
