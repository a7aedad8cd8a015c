"""Which tests are to notice a fault in which files."""


def _tests(folder: str, *names: str) -> tuple[str, ...]:
    return tuple(f"tests/{folder}/test_{name}.py" for name in names)


_TENANCY = "gateway/tenancy"
_KEYS = _tests(_TENANCY, "key_commands", "key_directory", "key_entropy", "many_keys")
_CACHE = _tests(
    "gateway/inference", "answer_file", "cache_in_redis", "cache_key", "response_cache", "shared_generation", "stores"
)
# By the path that a file begins with; the first that fits counts. Tests that start processes are left out where others
# notice the faults: a mutant is in this process alone.
GROUPS: dict[str, tuple[str, ...]] = {
    "classifier/policy": ("tests/classifier/policy",),
    "quality/monitor/answer_monitor.py": (
        "tests/quality/monitor",
        *_tests("quality/verification", "turns", "second_opinion", "private_texts", "comparison"),
    ),
    "quality/monitor": ("tests/quality/monitor",),
    "quality/rollout": _tests(
        "quality/rollout", "bounds_of_trials", "rollout_decisions", "rollout_rows", "experiments", "promotion",
        "rollout", "rollout_guardrails",
    ),
    "gateway/tenancy/guard.py": (*_tests(_TENANCY, "guards"), *_tests("gateway/inference/api", "inference_route")),
    "gateway/tenancy/admin_guard.py": _tests(_TENANCY, "guards"),
    "gateway/tenancy/budgets": _tests(_TENANCY, "budget_slices", "lease_grants", "budget_periods", "budgets"),
    "gateway/tenancy/changes.py": (*_KEYS, *_tests(_TENANCY, "lease_grants")),
    "gateway/tenancy/declared.py": _tests(_TENANCY, "reconciled_keys", "declared_keys"),
    "gateway/tenancy/keys": _KEYS,
    "gateway/tenancy/admission.py": _tests(_TENANCY, "overload"),
    "gateway/tenancy/windows.py": _tests(_TENANCY, "windows"),
    "gateway/tenancy/users": (
        *_tests(_TENANCY, "dashboard_sessions", "identity_provider"),
        *_tests("gateway/operations/dashboard", "passwords"),
    ),
    "gateway/tenancy": _tests(_TENANCY, "admission_control", "running_tenancy", "admission", "guards"),
    "gateway/inference/answer_stores.py": _CACHE,
    "gateway/inference/response_cache.py": _CACHE,
    "gateway/inference/shared_generation.py": _CACHE,
    "tiers/catalog/pricing.py": _tests("tiers/catalog", "pricing", "price_list"),
}  # fmt: skip


def group_of(file: str) -> tuple[str, ...]:
    """Return the tests for `file`. Raises `SystemExit` if no group has it."""
    for path, tests in GROUPS.items():
        if file == path or file.startswith(f"{path}/"):
            return tests
    raise SystemExit(f"{file} is in no group of tests/mutants/groups.py: {', '.join(GROUPS)}")
