"""The classes of attacks, a module for each family, in the order of the report."""

FAMILIES = (
    "refusals",
    "framing", "bodies", "texts", "streams", "access", "tenants", "disclosure", "caller_urls", "private_forms",
    "passed_bills", "upstream_floods", "upstream_claims", "upstream_cuts", "upstream_echoes", "dependencies",
    "model_files",
    "sign_on", "clocks", "judges", "neighbours", "upgrades", "few_files", "guardrails", "journals", "verification",
    "databases", "uploads", "extras", "hang_ups", "proxies", "together",
)  # fmt: skip
