"""The comparison with other engines: which way a ratio points, whose figure counts, what is left out."""

import pytest

from benchmarks.report.peer_tables import goals_table, results_of, systems_table

COLUMNS = ("ttft_p99_ms", "itl_p50_ms", "itl_p99_ms", "e2e_p50_ms")


def row(turn, system, load="many streams", concurrency=32, transport="in process", *, speed, ttft, tail=100.0):
    rest = dict.fromkeys(COLUMNS, 5.0) | {"requests": 10, "ok": 9, "busy_before": turn / 10, "mean_prompt": 1024.0}
    given = {"round": turn, "system": system, "load": load, "concurrency": concurrency, "transport": transport}
    return rest | given | {"out_tok_s": speed, "ttft_p50_ms": ttft, "ttft_p99_ms": tail}


ROWS = [
    row(0, "slow", speed=50.0, ttft=900.0, tail=800.0),
    row(0, "fast", speed=100.0, ttft=300.0, tail=900.0),
    row(0, "aio", speed=200.0, ttft=100.0, tail=400.0),
    row(1, "slow", speed=60.0, ttft=900.0, tail=800.0),
    row(1, "fast", speed=80.0, ttft=200.0, tail=900.0),
    row(1, "aio", speed=120.0, ttft=100.0, tail=200.0),
]


def goal(name, rows=ROWS):
    return next(result for result in results_of(rows).goals if result.goal.name == name)


def test_more_throughput_and_less_latency_are_both_times_better():
    speed, ttft = goal("output tokens/s, 32 streams"), goal("TTFT p50 ms, 32 streams")

    assert (speed.better.median, speed.better.low, speed.better.high) == pytest.approx((160 / 90, 1.5, 2.0))
    assert (ttft.better.median, ttft.better.low, ttft.better.high) == pytest.approx((2.5, 2.0, 3.0))


def test_each_goal_is_held_against_the_best_peer_in_its_own_figure():
    assert goal("output tokens/s, 32 streams").peer == "fast"
    assert goal("TTFT p99 ms, 32 streams").peer == "slow"


def test_prefill_speed_is_the_prompt_over_the_time_to_the_first_token():
    rows = [row(0, name, "long prompt", 1, speed=1.0, ttft=ttft) for name, ttft in (("fast", 512.0), ("aio", 256.0))]

    prefill = goal("prefill tokens/s, 1,024 in", rows)

    assert (prefill.peers.median, prefill.ours.median, prefill.better.median) == (2000, 4000, 2)


def test_goals_without_a_peer_or_without_ours_are_left_out():
    assert results_of([r for r in ROWS if r["system"] != "aio"]).goals == []
    assert results_of([r for r in ROWS if r["system"] == "aio"]).goals == []
    assert {g.goal.transport for g in results_of(ROWS).goals} == {"in process"}


def test_a_bound_shows_the_share_of_it_that_is_reached():
    table = goals_table(results_of(ROWS), {"closed_loop_32": 400.0})

    (line,) = [line for line in table.splitlines() if "tokens/s, 32" in line]
    assert [cell.strip() for cell in line.split("|")[-3:-1]] == ["400", "40%"]
    assert "1.78× [1.50 to 2.00]" in line


def test_every_system_is_listed_with_its_errors_and_how_busy_the_machine_was():
    results = results_of(ROWS)

    assert [(s.system, s.rounds, s.errors, s.busy_before) for s in results.systems] == [
        ("slow", 2, 2, 0.1),
        ("fast", 2, 2, 0.1),
        ("aio", 2, 2, 0.1),
    ]
    assert len(systems_table(results).splitlines()) == 2 + 3
