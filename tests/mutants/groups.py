"""Which tests are to notice a fault in which files."""

# By the longest path that a file begins with.
GROUPS: dict[str, tuple[str, ...]] = {
    "classifier/policy": ("tests/classifier/policy",),
    "quality/monitor": ("tests/quality/monitor",),
    "quality/monitor/e_detector.py": ("tests/quality/monitor/test_shift_detector.py",),
    "quality/rollout": ("tests/quality/rollout",),
    "gateway/tenancy": ("tests/gateway/tenancy",),
    "gateway/inference/cache": ("tests/gateway/inference/cache",),
    "tiers/catalog/pricing.py": ("tests/tiers/catalog/test_pricing.py",),
}


def group_of(file: str) -> tuple[str, ...]:
    """Return the tests for `file`. Raises `SystemExit` if no group has it."""
    known = [path for path in GROUPS if file == path or file.startswith(f"{path}/")]
    if not known:
        raise SystemExit(f"{file} is in no group of tests/mutants/groups.py: {', '.join(GROUPS)}")
    return GROUPS[max(known, key=len)]
