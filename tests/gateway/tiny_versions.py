"""A catalogue of four tiers on one tiny model, and two versions of that: a random model each, with other answers."""

from pathlib import Path
from typing import Any

from tests.inference_core.quantization.tiny_model import write_tiny_model

TOKENS = 24
ASKED: dict[str, Any] = {"model": "tier-1", "prompt": "It was the", "max_tokens": TOKENS, "temperature": 0}
TIERS = "".join(
    f"""
[[tiers]]
number = {number}
name = "tier-{number}"
class = "{kind}"
model = "tiny"
price = {{ input_usd_per_million = {10**number}, output_usd_per_million = {10**number} }}
objective = {{ ttft_ms = 500, itl_ms = 100 }}
expected_answer_tokens = 20
mean_latency_ms = 1000
max_tokens = 128
"""
    for number, kind in enumerate(("SIMPLE", "MEDIUM", "COMPLEX", "EXPERT"), start=1)
)


def tiny_catalog(model: Path, more: str = "") -> str:
    """The text of a catalogue of four tiers on `model`; `more`: further lines of its entry."""
    return f"""
name = "tiny"
[core]
arena_bytes = 16_777_216
slab_bytes = 1_048_576
[[core.models]]
name = "tiny"
path = "{model}"
compute = "float32"
{more}{TIERS}"""


class Versions:
    """A catalogue file, and two versions of its only model."""

    def __init__(self, folder: Path) -> None:
        self.file = folder / "catalogue.toml"
        for seed, name in enumerate(("old", "new")):
            write_tiny_model(self.model(name), seed)

    def model(self, name: str) -> Path:
        """The folder of a version; there are "old" and "new"."""
        return self.file.parent / name

    def text(self, name: str, more: str = "") -> str:
        return tiny_catalog(self.model(name), more)

    def write(self, name: str, more: str = "") -> None:
        self.file.write_text(self.text(name, more))
