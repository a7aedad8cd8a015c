"""A catalogue whose four tiers are one upstream server: gateway processes without any core, up in a moment."""

from pathlib import Path

TIER = """
[[tiers]]
number = {number}
name = "tier-{number}"
class = "{kind}"
price = {{ input_usd_per_million = {price}, output_usd_per_million = {output} }}
objective = {{ ttft_ms = 1000, itl_ms = 100 }}
expected_answer_tokens = 200
mean_latency_ms = 1000
max_tokens = 512

[tiers.remote]
base_url = "{base_url}"
model = "upstream"
max_context = 4096
"""
KINDS = ("SIMPLE", "MEDIUM", "COMPLEX", "EXPERT")


def write_remote_catalog(path: Path, base_url: str) -> Path:
    """Tiers 1 to 4, each ten times as dear as the one before."""
    tiers = (
        TIER.format(number=n, kind=kind, price=10 ** (n - 2), output=3 * 10 ** (n - 2), base_url=base_url)
        for n, kind in enumerate(KINDS, start=1)
    )
    path.write_text('name = "one-upstream"\n' + "".join(tiers))
    return path
