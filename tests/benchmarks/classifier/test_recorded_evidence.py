"""Recorded answers judged by their text: what is found is in the text, and shuffling it away takes it away."""

import gzip
import json
import random
from pathlib import Path

from click.testing import CliRunner

from benchmarks.__main__ import main
from benchmarks.classifier.evidence import AGREEMENT, ALONE, EVIDENCE, SHUFFLED, evidence_table
from benchmarks.replay.ladder import Answer, Ladder, Prompt, declared_tiers
from tests.shared_data import data_file

REFUSAL = "I'm sorry, but I cannot help with that."


def ladder(n: int = 120) -> Ladder:
    """Tier 1 refuses where it fails; tiers 2 and 3 fail by chance, with nothing to see. Half of the prompts ask for a
    number, which tiers 1 and 2 agree about where tier 2 is right."""
    rng = random.Random(3)
    prompts = []
    for place in range(n):
        asks, good = place % 2 == 0, [rng.random() < 0.5 for _ in range(3)]
        text = f"What is {place} plus {place}?" if asks else f"Describe village {place}."
        said = f"The answer is {2 * place}." if asks else f"It has {place} houses."
        other = said if good[1] or not asks else f"The answer is {2 * place + 1}."
        texts = (said if good[0] else REFUSAL, other, said, said)
        marks = [9.0 if one else 2.0 for one in good] + [9.0]
        answers = tuple(Answer(one, mark) for one, mark in zip(texts, marks, strict=True))
        prompts.append(Prompt(f"p{place}", f"kind {place % 2}", text, answers))
    return Ladder("made", declared_tiers(("a", "b", "c", "d")), tuple(prompts))


def test_what_the_text_tells_is_found_and_noise_is_not() -> None:
    tiers, lines = evidence_table(ladder(), seed=0)
    found = {(line.tier, line.way): line for line in lines}
    assert [tier.is_better for tier in tiers][::2] == [True, False]
    assert found[1, EVIDENCE].auc.value > 0.95
    assert found[1, EVIDENCE].more.low > 0.2
    assert found[3, EVIDENCE].more.low < 0.05
    assert found[2, AGREEMENT].auc.value > found[2, EVIDENCE].auc.value + 0.05
    assert found[1, SHUFFLED].auc.value < 0.65
    cost, alone = found[1, EVIDENCE].cost, found[1, ALONE].cost
    assert cost is not None
    assert alone is not None
    assert cost.value < alone.value


def test_the_command_prints_every_way_for_every_tier_and_their_mean(tmp_path: Path) -> None:
    file = tmp_path / "answers.jsonl.gz"
    with gzip.open(file, "wt") as lines:
        for prompt in ladder(40).prompts:
            answers = {str(k): {"model": "m", "text": a.text, "score": a.mark} for k, a in enumerate(prompt.answers, 1)}
            turns = [{"role": "user", "content": prompt.text}]
            row = {"id": prompt.prompt_id, "category": prompt.kind, "turns": turns, "answers": answers}
            lines.write(json.dumps(row) + "\n")
    shown = CliRunner().invoke(main, ["evidence", str(file)])
    assert shown.exit_code == 0
    assert shown.output.startswith("40 prompts; AUC within a category")
    assert shown.output.count("p and evidence") == 4
    file.write_bytes(gzip.compress(b'{"id": 1}\n'))
    broken = CliRunner().invoke(main, ["evidence", str(file)])
    assert (broken.exit_code, "KeyError" in broken.output) == (1, True)


def test_evidence_in_recorded_answers_is_worth_something_beyond_the_prompt() -> None:
    file = data_file("replay_arena.jsonl.gz")
    shown = CliRunner().invoke(main, ["evidence", str(file)])
    (mean,) = [line for line in shown.output.splitlines() if line.startswith("mean") and " p and evidence " in line]
    assert float(mean.split()[-3]) > 0.05
