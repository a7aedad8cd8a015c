"""What AIO does while something that it depends on fails, as `aio check` shows it: one sentence for each dependency."""

from gateway.base.settings import Settings

_ALWAYS = {
    "database": "AIO goes on serving. Records wait in the journal, and nothing is lost.",
    "classifier": "The length of the prompt decides.",
    "tier": "Before its first token, the next tier up answers, once. After that, the stream ends with an error.",
    "core": "Other tiers answer, or requests get a 503 with Retry-After. AIO starts the core again.",
    "journal's disk": "AIO goes on serving. Beyond 64 MiB of records, requests are refused and counted.",
}
_BUDGETS = {
    "open": "go on and are charged later",
    "closed": "of keys with budgets get a 503",
}
_CLUSTER = (
    "If one replica is lost, requests without output move to another, and started streams end with an error. "
    "If all are lost, other tiers answer, or requests get a 503 with Retry-After."
)


def failure_policies(settings: Settings) -> dict[str, str]:
    """Return what happens while each dependency is away, by its name."""
    policies = _ALWAYS | {
        "budgets": "Without the database, each process spends the slice that it holds. Then requests "
        f"{_BUDGETS[settings.budgets_without_database]} "
        f"(AIO_BUDGETS_WITHOUT_DATABASE={settings.budgets_without_database})."
    }
    if settings.cluster:
        policies["core"] = _CLUSTER
    if settings.redis_url:
        away = (
            "Each process counts limits by itself"
            if settings.limits_without_redis == "open"
            else "Keys with limits get a 503"
        )
        policies["Redis"] = f"{away} (AIO_LIMITS_WITHOUT_REDIS={settings.limits_without_redis})."
    return policies


def failure_text(settings: Settings) -> str:
    """Return the policies under a heading, one line each."""
    lines = (f"  {name}: {policy}" for name, policy in failure_policies(settings).items())
    return "\n".join(["When something fails:", *lines])
