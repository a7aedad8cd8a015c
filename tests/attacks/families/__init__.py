"""The classes of attacks, a module for each family."""

from importlib import import_module

from tests.attacks.outcome import CLASSES, AttackClass

FAMILIES = (
    "refusals",
    "framing", "bodies", "texts", "streams", "access", "tenants", "disclosure", "caller_urls", "private_forms",
    "passed_bills", "upstream_floods", "upstream_claims", "upstream_cuts", "upstream_echoes", "dependencies",
    "model_files",
    "sign_on", "clocks", "judges", "neighbours", "upgrades", "few_files", "guardrails", "journals", "verification",
    "databases", "uploads", "extras", "hang_ups", "proxies",
)  # fmt: skip


def load_classes() -> dict[str, AttackClass]:
    """All classes by name, in the order of the report."""
    for family in FAMILIES:
        import_module(f"{__name__}.{family}")
    return CLASSES
