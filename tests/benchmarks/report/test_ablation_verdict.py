"""Whether a technique is kept follows from its measured effect in the full system (SPEC TB-05)."""

from pathlib import Path

import pytest

from benchmarks.report.ablation_tables import ablation_tables, verdict
from benchmarks.report.measured import AblationResults, Effect, Spread
from benchmarks.report.measurement import read_results

RESULTS = Path(__file__).parents[3] / "docs" / "measurements"
UNCLEAR = Spread(1.0, 0.9, 1.1)


def effect(full: dict[str, Spread | None] | None) -> Effect:
    return Effect(technique="t", small=False, alone={}, full=full, interaction=None)


@pytest.mark.parametrize(
    ("full", "said"),
    [
        ({"out_tok_s": Spread(1.2, 1.1, 1.3), "ttft_p50_ms": Spread(2.0, 1.5, 2.5)}, "keep: throughput"),
        ({"out_tok_s": Spread(0.8, 0.7, 0.9), "kv_mb_mean": Spread(0.5, 0.4, 0.6)}, "drop: throughput"),
        ({"out_tok_s": UNCLEAR, "ttft_p50_ms": UNCLEAR, "kv_mb_mean": Spread(0.5, 0.4, 0.6)}, "keep: KV MB"),
        ({"out_tok_s": UNCLEAR, "itl_p99_ms": Spread(1.2, 1.1, 1.3), "kv_mb_mean": None}, "drop: no gain"),
        ({"out_tok_s": Spread(1.2, 1.2, 1.2)}, "too few rounds"),
        (None, "not in the full system"),
    ],
)
def test_a_technique_is_kept_for_what_it_surely_gains_and_dropped_otherwise(
    full: dict[str, Spread | None] | None, said: str
) -> None:
    assert verdict(effect(full)) == said


def test_every_technique_of_the_measurement_on_record_has_its_verdict() -> None:
    found = read_results(RESULTS, "ablation", AblationResults)
    assert found is not None
    rows = ablation_tables(found[1]).split("\n\n")[1].splitlines()
    assert rows[0].endswith("verdict |")
    assert [row.strip(" |").split(" | ")[-1].strip() for row in rows[2:]] == [
        verdict(each) for each in found[1].effects
    ]
