"""The measure of flips by words that change nothing of the task."""

import random
from pathlib import Path

import msgspec
from click.testing import CliRunner

from benchmarks.__main__ import main
from benchmarks.classifier.flips import KINDS

PROMPTS = ["What is the capital of Portugal, and how many people live there?", "Prove that every tree has a leaf."]


def test_every_kind_changes_a_prompt_and_the_same_seed_the_same_way() -> None:
    for kind, noise in KINDS.items():
        first, again = (noise(PROMPTS[0] * 4, random.Random(3)) for _ in range(2))
        assert first == again != PROMPTS[0] * 4, kind


def test_the_command_says_flips_and_prices_of_every_kind(tmp_path: Path) -> None:
    rows = tmp_path / "rows.jsonl"
    rows.write_bytes(b"\n".join(msgspec.json.encode({"prompt": prompt}) for prompt in PROMPTS))
    ended = CliRunner().invoke(main, ["flips", str(rows), "--draws", "1", "--json"])
    assert ended.exit_code == 0, ended.output
    found = msgspec.json.decode(ended.output)
    assert [row["kind"] for row in found] == list(KINDS)
    assert all(row["rows"] == 2 and 0 <= row["up"] + row["down"] <= 1 and row["cost"] > 0 for row in found)
