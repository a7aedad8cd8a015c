"""Which tests are to notice a fault in which files."""

# By the path that a file begins with.
GROUPS: dict[str, tuple[str, ...]] = {
    "classifier/policy": ("tests/classifier/policy",),
    "quality/monitor": ("tests/quality/monitor",),
    "quality/rollout": ("tests/quality/rollout",),
    "gateway/tenancy": ("tests/gateway/tenancy",),
    "gateway/inference/cache": ("tests/gateway/inference/cache",),
    "tiers/catalog/pricing.py": ("tests/tiers/catalog/test_pricing.py", "tests/tiers/catalog/test_price_list.py"),
}


def group_of(file: str) -> tuple[str, ...]:
    """Return the tests for `file`. Raises `SystemExit` if no group has it."""
    for path, tests in GROUPS.items():
        if file == path or file.startswith(f"{path}/"):
            return tests
    raise SystemExit(f"{file} is in no group of tests/mutants/groups.py: {', '.join(GROUPS)}")
