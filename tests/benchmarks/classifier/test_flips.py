"""The measure of flips by words that change nothing of the task."""

import random
from pathlib import Path

import msgspec
from click.testing import CliRunner

from benchmarks.__main__ import main
from benchmarks.classifier.flips import KINDS, NOISES

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


def test_paraphrases_and_noise_are_counted_together(tmp_path: Path) -> None:
    rows, pairs = tmp_path / "rows.jsonl", tmp_path / "pairs.toml"
    rows.write_bytes(b"\n".join(msgspec.json.encode({"prompt": prompt}) for prompt in PROMPTS))
    pairs.write_text('SIMPLE = [["What is 2 + 2?", "How much is 2 + 2?"]]\n')
    ended = CliRunner().invoke(main, ["flips", str(rows), "--draws", "1", "--paraphrases", str(pairs), "--json"])
    assert ended.exit_code == 0, ended.output
    by_kind = {row["kind"]: row for row in msgspec.json.decode(ended.output)}
    assert by_kind["other words"]["rows"] == 1
    assert by_kind["noise and other words"]["rows"] == 1 + len(NOISES) * len(PROMPTS)
