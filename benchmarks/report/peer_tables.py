"""What a comparison with other engines says: the goals' table, and every figure behind it."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from benchmarks.report.markdown import markdown, middle, number, ranged, times
from benchmarks.report.measured import Spread
from benchmarks.report.measurement import Row
from benchmarks.report.rounds import ratio, spread

OURS = "aio"
STREAM_LOADS = ("one stream", "many streams")
_FIGURES = ("out_tok_s", "ttft_p50_ms", "ttft_p99_ms", "itl_p50_ms", "itl_p99_ms", "e2e_p50_ms")


@dataclass(frozen=True, slots=True)
class Goal:
    """One line of the goals: a figure of a load, and how many times better than the best peer it is to be.

    `reach` and `aim` are ratios, above 1 where ours is better. `lower`: the smaller figure is the better one. `bound`
    names what the machine itself could do, in `python -m benchmarks kernels`.
    """

    name: str
    transport: str
    load: str
    concurrency: int
    figure: Callable[[Row], float | None]
    lower: bool
    reach: float
    aim: float | None = None
    bound: str | None = None


def _column(name: str) -> Callable[[Row], float | None]:
    def value(row: Row) -> float | None:
        figure: float | None = row[name]
        return figure

    return value


def _prefill(row: Row) -> float | None:
    """Prompt tokens per second until the first one of the answer."""
    return row["mean_prompt"] / row["ttft_p50_ms"] * 1e3 if row["ttft_p50_ms"] and row["mean_prompt"] else None


_SPEED, _TTFT, _TTFT_TAIL = _column("out_tok_s"), _column("ttft_p50_ms"), _column("ttft_p99_ms")
GOALS = (
    Goal("output tokens/s, 1 stream", "in process", "one stream", 1, _SPEED, False, 3, 3.5, "decode_1"),
    Goal("output tokens/s, 8 streams", "in process", "many streams", 8, _SPEED, False, 2, 2.4, "closed_loop_8"),
    Goal("output tokens/s, 32 streams", "in process", "many streams", 32, _SPEED, False, 1.5, 2, "closed_loop_32"),
    Goal("prefill tokens/s, 1,024 in", "in process", "long prompt", 1, _prefill, False, 1.4, 1.7, "prefill_1024"),
    Goal("TTFT p50 ms, 16 in, 1 stream", "in process", "short prompt", 1, _TTFT, True, 2.1, 3),
    Goal("TTFT p50 ms, 32 streams", "in process", "many streams", 32, _TTFT, True, 1, 2),
    Goal("TTFT p99 ms, 32 streams", "in process", "many streams", 32, _TTFT_TAIL, True, 2, 4),
    Goal("output tokens/s, 1 stream", "http", "one stream", 1, _SPEED, False, 4),
    Goal("output tokens/s, 8 streams", "http", "many streams", 8, _SPEED, False, 2.5),
    Goal("output tokens/s, 32 streams", "http", "many streams", 32, _SPEED, False, 1.8, 2.5),
    Goal("output tokens/s, 64 streams", "http", "most streams", 64, _SPEED, False, 1.8, 2.2),
    Goal("output tokens/s, 128 streams", "http", "most streams", 128, _SPEED, False, 1.6, 2),
    Goal("TTFT p99 ms, 32 streams", "http", "many streams", 32, _TTFT_TAIL, True, 1, 2),
    Goal("TTFT p50 ms, 128 streams", "http", "most streams", 128, _TTFT, True, 1, 2),
)


class GoalResult(msgspec.Struct, frozen=True, kw_only=True):
    """A goal, the best peer's figure and ours, and how many times better ours is."""

    goal: Goal
    peer: str
    peers: Spread
    ours: Spread
    better: Spread


class SystemResult(msgspec.Struct, frozen=True, kw_only=True):
    """One system under one load; `busy_before` is the most that others used of the machine before any round."""

    transport: str
    load: str
    concurrency: int
    system: str
    rounds: int
    errors: int
    busy_before: float
    figures: dict[str, Spread | None]
    ahead: Spread | None = None


class PeerResults(msgspec.Struct, frozen=True):
    goals: list[GoalResult]
    systems: list[SystemResult]


def results_of(rows: Sequence[Row]) -> PeerResults:
    """What the engines' rows of all rounds say; goals whose peers were not measured are left out."""
    rows = [row for row in rows if "transport" in row]
    goal_results = (_goal_result(goal, rows) for goal in GOALS)
    return PeerResults([result for result in goal_results if result is not None], _systems(rows))


def _goal_result(goal: Goal, rows: Sequence[Row]) -> GoalResult | None:
    chosen = [r for r in rows if all(r[k] == getattr(goal, k) for k in ("transport", "load", "concurrency"))]
    by_system: dict[str, list[float | None]] = {}
    for row in sorted(chosen, key=lambda row: row["round"]):
        by_system.setdefault(row["system"], []).append(goal.figure(row))
    ours = by_system.pop(OURS, [])
    spreads = {name: figure for name, values in by_system.items() if (figure := spread(values)) is not None}
    own = spread(ours)
    if not spreads or own is None:
        return None
    best = (min if goal.lower else max)(spreads, key=lambda name: spreads[name].median)
    theirs = by_system[best]
    better = ratio(theirs, ours) if goal.lower else ratio(ours, theirs)
    if better is None:
        return None
    return GoalResult(goal=goal, peer=best, peers=spreads[best], ours=own, better=better)


def _systems(rows: Sequence[Row]) -> list[SystemResult]:
    keys = dict.fromkeys((r["transport"], r["load"], r["concurrency"], r["system"]) for r in rows)
    systems = []
    for key in keys:
        own = [r for r in rows if (r["transport"], r["load"], r["concurrency"], r["system"]) == key]
        transport, load, concurrency, system = key
        systems.append(
            SystemResult(
                transport=transport,
                load=load,
                concurrency=concurrency,
                system=system,
                rounds=len(own),
                errors=sum(row["requests"] - row["ok"] for row in own),
                busy_before=max(row.get("busy_before") or 0.0 for row in own),
                figures={name: spread([row[name] for row in own]) for name in _FIGURES},
                ahead=_ahead(rows, own),
            )
        )
    return systems


def _ahead(rows: Sequence[Row], peer: Sequence[Row]) -> Spread | None:
    """Our output tokens/s over a peer's, of the same load and rounds, with drafts like it; in process where we were not
    asked over its transport. None for ourselves and without such rows."""
    first, drafts = peer[0], peer[0]["system"].partition(",")[1:]
    if first["system"].startswith(OURS):
        return None
    same = [r for r in rows if r["system"] == OURS + "".join(drafts)]
    same = [r for r in same if (r["load"], r["concurrency"]) == (first["load"], first["concurrency"])]
    ours = [r for r in same if r["transport"] == first["transport"]] or same
    by_round = {row["round"]: row["out_tok_s"] for row in ours}
    return ratio([by_round.get(row["round"]) for row in peer], [row["out_tok_s"] for row in peer])


def gateways_table(rows: Sequence[Row]) -> str:
    """What each gateway answers at the same load; empty without such rows."""
    head = ["answers/s", "API", "in flight", *dict.fromkeys(row["target"] for row in rows if "target" in row)]
    loads = dict.fromkeys((row["api"], row["stream"], row["offered"]) for row in rows if "target" in row)
    table = []
    for api, stream, offered in loads:
        by_target = {
            r["target"]: r for r in rows if (r.get("api"), r.get("stream"), r.get("offered")) == (api, stream, offered)
        }
        cells = [_answers(by_target.get(name)) for name in head[3:]]
        table.append(["streamed" if stream else "whole", api, f"{offered:g}", *cells])
    return markdown(head, table) if table else ""


def _answers(row: Row | None) -> str:
    """Answers per second and the median of their milliseconds; errors alone where nothing else came."""
    if row is None:
        return "–"
    return f"{row['req_s']:,.0f} ({number(row['p50_ms'])} ms)" if row["ok"] else f"{row['errors']} errors"


def goals_table(results: PeerResults, bounds: Mapping[str, float]) -> str:
    """The goals against the best peer; `bounds` by name are in the figure's own unit."""
    head = ["in process", "best peer", "its figure", "ours", "times better", "goal", "aim", "bound", "reached"]
    tables = []
    for transport, title in _HEADS.items():
        rows = [_goal_row(goal, bounds) for goal in results.goals if goal.goal.transport == transport]
        if rows:
            tables.append(markdown([title, *head[1:]], rows))
    return "\n\n".join(tables)


_HEADS = {"in process": "in process", "http": "over HTTP"}


def _goal_row(result: GoalResult, bounds: Mapping[str, float]) -> list[str]:
    goal, bound = result.goal, bounds.get(result.goal.bound or "")
    measured = [ranged(result.peers), ranged(result.ours), times(result.better)]
    aim, reached = "–" if goal.aim is None else f"{goal.aim:g}×", result.ours.median / bound if bound else None
    wanted = [f"{goal.reach:g}×", aim, number(bound), "–" if reached is None else f"{reached:.0%}"]
    return [goal.name, result.peer, *measured, *wanted]


def systems_table(results: PeerResults) -> str:
    """Every system under every load."""
    head = ["load", "in flight", "system", "output tokens/s", "TTFT p50 ms", "TTFT p99 ms", "ITL p50 ms", "ITL p99 ms"]
    head += ["errors", "busy before", "ours to it, tokens/s"]
    rows: list[list[Any]] = []
    for each in results.systems:
        figures = each.figures
        rows.append(
            [
                f"{each.load}, {_HEADS[each.transport]}",
                str(each.concurrency),
                each.system,
                ranged(figures["out_tok_s"]),
                *(middle(figures[name]) for name in ("ttft_p50_ms", "ttft_p99_ms", "itl_p50_ms", "itl_p99_ms")),
                str(each.errors),
                f"{each.busy_before:.2f}",
                times(each.ahead),
            ]
        )
    return markdown(head, rows)


def peer_tables(results: PeerResults, bounds: Mapping[str, float] | None = None) -> str:
    """Goals, then all figures."""
    parts = [goals_table(results, bounds or {}), systems_table(results)]
    return "\n\n".join(part for part in parts if part)
