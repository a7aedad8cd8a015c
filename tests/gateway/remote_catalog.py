"""A catalogue whose tiers are one upstream server: gateway processes without a core, which start at once."""

from pathlib import Path

TIER = """
[[tiers]]
number = {number}
name = "tier-{number}"
price = {{ input_usd_per_million = {price}, output_usd_per_million = {output} }}
objective = {{ ttft_ms = 1000, itl_ms = 100 }}
expected_answer_tokens = 200
mean_latency_ms = 1000
max_tokens = 512

[tiers.remote]
base_url = "{base_url}"
model = "{model}"
max_context = 4096
"""


def write_remote_catalog(path: Path, base_url: str, tiers: int = 4, *, own_models: bool = False) -> Path:
    """Each tier costs ten times as much as the one before. `own_models`: each is a model of its own, which labels need:
    those of one model are equally good."""
    entries = (
        TIER.format(
            number=n,
            price=10.0 ** (n - 2),
            output=3 * 10.0 ** (n - 2),
            base_url=base_url,
            model=f"upstream-{n}" if own_models else "upstream",
        )
        for n in range(1, tiers + 1)
    )
    path.write_text('name = "one-upstream"\n' + "".join(entries))
    return path
