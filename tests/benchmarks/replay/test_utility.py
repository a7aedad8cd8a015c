"""Utility of routing on recorded customers: read, tabled, and when a new customer is as well off as with one model."""

import json
from pathlib import Path

import numpy as np
import pytest

from benchmarks.replay.figures import Figure
from benchmarks.replay.utility import Outcome, labels_until_within, read_customers, table

PROMPTS = ("Say hello to {}.", "Prove by induction that {} divides the sum of the first {} cubes, and bound the rest.")


@pytest.fixture
def recorded(tmp_path: Path) -> Path:
    """Two customers; the weak model is right on greetings alone, the strong one always."""
    rng, lines = np.random.default_rng(0), []
    for number in range(240):
        hard = bool(rng.random() < 0.5)
        lines.append(json.dumps({
            "domain": f"domain-{number % 2}", "group": None, "split": "train" if number % 4 < 2 else "test",
            "prompt": PROMPTS[hard].format(number, number), "outcomes": {"Weak": float(not hard), "strong": 1.0},
        }))  # fmt: skip
    path = tmp_path / "customers.jsonl"
    path.write_text("\n".join(lines))
    return path


def test_own_labels_route_better_than_one_model_where_prompts_tell_them_apart(recorded: Path) -> None:
    customers = read_customers(recorded, "weak", "STRONG", "domain", 100)
    found = {(one.way, one.labels): one.points for one in table(customers, 0.3, (0, 40), 2)}
    assert found["oracle", 0].value > 5
    assert found["aio", 40].value > found["shuffled", 40].value + 5
    assert found["aio", 40].value > 5
    assert max(found["always weak", 0].value, found["always strong", 0].value) <= 0


def test_customers_with_too_few_rows_are_refused(recorded: Path) -> None:
    with pytest.raises(ValueError, match="has 500 rows"):
        read_customers(recorded, "weak", "strong", "domain", 500)


@pytest.mark.parametrize(
    ("points", "expected"),
    [([-5.0, -0.9, 2.0], 10), ([0.0, -1.1, 2.0], 30), ([0.0, 0.0, -3.0], None), ([-1.0, -1.0, -1.0], 0)],
)
def test_labels_are_counted_until_it_stays_within_a_point_of_the_better_constant(
    points: list[float], expected: int | None
) -> None:
    outcomes = [Outcome("aio", n, Figure(p, p, p)) for n, p in zip((0, 10, 30), points, strict=True)]
    assert labels_until_within([*outcomes, Outcome("shuffled", 0, Figure(9.0, 9.0, 9.0))], "aio") == expected
