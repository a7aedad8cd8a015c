"""How long pages of the admin API take over many rows, by every combination of filters, over HTTP."""

import secrets
import statistics
import time
from collections.abc import Callable, Mapping
from itertools import chain, combinations
from typing import Any

import httpx
import msgspec
import numpy as np
from sqlalchemy import Table, text
from sqlalchemy.ext.asyncio import AsyncEngine

from benchmarks.gateway.overhead import served
from benchmarks.gateway.viewers import sign_in
from classifier.decision import PolicyInputs, Prediction
from classifier.policy.experiment_split import Arm
from classifier.registry.artefact import default_artefact, load_manifest
from gateway.base.settings import Settings
from gateway.operations.dashboard.site import PAGES
from migrations.tables.audit import audit_events
from migrations.tables.quality import (
    classifier_versions,
    experiments,
    retrain_runs,
    rollouts,
    training_rows,
    verifications,
)
from migrations.tables.requests import requests, routing_decisions
from quality.rollout.experiments import Plan
from quality.store.database import migrate, open_database
from quality.verification.training_rows import feature_spec

Progress = Callable[[str, float], None]

SPAN_SECONDS = 30 * 86_400
BATCH = 100_000
VECTORS = 1000
# A number in [0, 2^32) that looks random and belongs to row n; `u / 2^k % m` are further ones.
_MIXED = "((n * 2654435761 + n * n * 40503) % 4294967296)"


class ListTime(msgspec.Struct, frozen=True, kw_only=True):
    """Wall-clock milliseconds of requests for pages of `endpoint`. `slowest`: the query whose best of all repeats took
    longest, which says more of the query than of the machine's other work."""

    endpoint: str
    rows: int
    queries: int
    requests: int
    p50_ms: float
    p99_ms: float
    slowest_best_ms: float
    slowest: str


class DatabaseInUseError(ValueError):
    """The database that was given holds something; a benchmark fills an empty one only."""


class Column:
    """How the values of a filled column are dealt out: `shares` in thousandths, they sum to a thousand."""

    def __init__(self, divisor: int, shares: Mapping[Any, int]) -> None:
        self._divisor, self._shares = divisor, shares

    @property
    def values(self) -> list[Any]:
        """The commonest and the rarest value."""
        known = [value for value in self._shares if value is not None]
        return [known[0], known[-1]]

    def sql(self) -> str:
        """The value of row n."""
        cases, bound = [], 0
        for value, share in self._shares.items():
            bound += share
            shown = "NULL" if value is None else f"'{value}'" if isinstance(value, str) else value
            cases.append(f"WHEN u / {self._divisor} % 1000 < {bound} THEN {shown}")
        return f"CASE {' '.join(cases)} END"


_VERIFICATIONS = {
    "tier": Column(1, {1: 600, 2: 250, 3: 100, 4: 50}),
    "status": Column(7, {"done": 960, "failed": 30, "pending": 10}),
    "label": Column(31, {"no_worse": 700, None: 120, "worse": 150, "tie": 30}),
    "judge": Column(127, {"exact": 500, "pairwise": 200, None: 100, "json": 100, "user": 80, "code": 20}),
    "sampled_reason": Column(511, {"sample": 600, "probe": 300, "downgrade": 80, "feedback": 20}),
    "key_id": Column(2047, {"key-0": 500, "key-1": 300, None: 100, "key-2": 90, "key-3": 10}),
}
_ACTIONS = {"judge.calibrated": 400, "knob.changed": 400, "retrain.started": 190, "classifier.promoted": 10}
_AUDIT = {"action": Column(1, _ACTIONS), "actor": Column(7, {"local": 600, "ann": 390, "bob": 10})}
_RUNS = {
    "status": Column(1, {"done": 900, "failed": 100}),
    "trigger": Column(7, {"cron": 700, "drift": 250, "button": 40, "cli": 10}),
}
_VERSIONS = {"status": Column(1, {"retired": 600, "refused": 350, "candidate": 40, "promoted": 10})}
_MODELS = {"auto": 700, "tier-1": 150, "tier-2": 80, "smollm2-int4": 40, "tier-3": 20, "tier-4": 10}
_REQUESTS = {
    "tier": _VERIFICATIONS["tier"],
    "status": Column(31, {"ok": 980, "error": 15, "aborted": 5}),
    "requested_model": Column(127, _MODELS),
    "key_id": _VERIFICATIONS["key_id"],
}
_NUMBERS = dict.fromkeys(("cost_usd", "baseline_cost_usd", "route_ms", "ttft_ms", "e2e_ms", "overhead_ms"), "0.5")
_COUNTS = dict.fromkeys(("prompt_tokens", "completion_tokens", "cached_tokens", "reasoning_tokens"), "64")
_ENDED = {"status": Column(1, {"kept": 700, "rolled_back": 250, "superseded": 40, "stopped": 10})}


def _sql_json(value: object) -> str:
    """With spaces after its colons, which SQLAlchemy would take for the beginning of a parameter otherwise."""
    return msgspec.json.format(msgspec.json.encode(value), indent=0).decode()


_PLAN = _sql_json(Plan(share=0.1, a=Arm(version="v1"), b=Arm(version="v2"), tiers=4))
_INPUTS = _sql_json(
    PolicyInputs(
        prediction=Prediction(
            p_ok=[0.8, 0.85, 0.9, 1.0],
            kind="measured",
            novelty=0.5,
            classifier_version="v",
            classes=[0.7, 0.1, 0.1, 0.1],
        ),
        costs=[1e-5, 2e-5, 4e-5, 8e-5],
        quality_target=0.9,
        tau=0.5,
    )
)
LISTS: dict[str, tuple[Table, dict[str, Column], dict[str, str]]] = {
    "requests": (
        requests,
        _REQUESTS,
        {"request_id": "'chatcmpl-' || n", "api": "'chat'", "stream": "n % 2 = 0", "http_status": "200", "model": "'m'",
         "finish_reason": "'stop'",
         "attempts": "'[{\"tier\": 1, \"model\": \"m\", \"status\": \"ok\", \"cost_usd\": 0.5}]'",
         "messages": "'[{\"role\": \"user\", \"content\": \"A question of some length, as they are.\"}]'",
         "answer": "'An answer of some length, as they are.'", **_COUNTS, **_NUMBERS},
    ),
    "verifications": (
        verifications,
        _VERIFICATIONS,
        {"request_id": "'chatcmpl-' || n", "model": "'m'", "sampled_probability": "0.05", "cost_usd": "0.001",
         "reserved_usd": "0.0", "attempts": "1", "reason": "'because of one thing and another'",
         "verifier_answer": "'An answer of some length, as they are.'",
         "finished_at": "CASE WHEN u / 7 % 1000 < 990 THEN at + 60.0 END"},
    ),
    "transitions": (audit_events, _AUDIT, {"subject": "'s' || n", "reason": "'for some reason or other'"}),
    "retrainings": (retrain_runs, _RUNS, {"run_id": "'run' || n", "owner": "'o'", "lease_until": "0.0"}),
    "artefacts": (
        classifier_versions, _VERSIONS, {"version": "'v' || n", "path": "''", "reason": "'better'", "metrics": "'{}'"}
    ),
    "rollouts": (
        rollouts, _ENDED,
        {"rollout_id": "'o' || n", "version": "'v' || n", "incumbent": "'v' || (n - 1)", "stage": "'watch'",
         "share": "0.1", "settings": "'{}'", "reason": "'for some reason'"},
    ),
    "experiments": (experiments, _ENDED, {"experiment_id": "'e' || n", "name": "'a'", "config": f"'{_PLAN}'"}),
}  # fmt: skip
# Of the requests, what the estimates use besides verifications.
DECISIONS: dict[str, tuple[Table, dict[str, Column], dict[str, str]]] = {
    "decisions": (
        routing_decisions,
        {"tier": _VERIFICATIONS["tier"]},
        {"request_id": "'chatcmpl-' || n", "reason": "'for some reason'", "classifier_version": "'v'", "novelty": "0.5",
         "prediction_kind": "'measured'", "quality_target": "0.9", "p_ok": "'[0.8, 0.85, 0.9, 1.0]'", "scores": "'[]'",
         "inputs": f"'{_INPUTS}'"},
    ),
}  # fmt: skip
# Shown at once, whatever there is: what they are taken of is as many as the newest are.
SUMMARIES = ("estimates",)


async def fill(engine: AsyncEngine, rows: int, progress: Progress, begin: float = 0.0, only: str | None = None) -> None:
    """Put `rows` rows into every table, or that of the list `only`, spread over thirty days from `begin`, in epoch
    seconds. Raises `DatabaseInUseError`."""
    postgres = engine.dialect.name == "postgresql"
    tables = LISTS | DECISIONS if only is None else {only: LISTS[only]}
    for place, (name, (table, columns, constants)) in enumerate(tables.items()):
        async with engine.connect() as connection:
            if (await connection.execute(table.select().limit(1))).first() is not None:
                raise DatabaseInUseError(f"the table {table.name} has rows already; give an empty database")
        values = {column: dealt.sql() for column, dealt in columns.items()} | constants
        values["created_at"] = "at"
        for first in range(1, rows + 1, BATCH):
            last = min(first + BATCH - 1, rows)
            series = f"generate_series({first}, {last}) AS numbers(n)"
            counting = f"SELECT {first} UNION ALL SELECT n + 1 FROM c WHERE n < {last}"  # noqa: S608
            # All of it is this module's own.
            numbers = (
                f"SELECT CAST(n AS BIGINT) AS n FROM {series}"  # noqa: S608
                if postgres
                else f"WITH RECURSIVE c(n) AS ({counting}) SELECT n FROM c"  # noqa: S608
            )
            insert = (
                f"INSERT INTO {table.name} ({', '.join(values)}) SELECT {', '.join(values.values())} "  # noqa: S608
                f"FROM (SELECT n, {_MIXED} AS u, {begin} + n * {SPAN_SECONDS}.0 / {rows} AS at "
                f"FROM ({numbers}) AS numbered) AS dealt"
            )
            async with engine.begin() as connection:
                await connection.execute(text(insert))
            progress(f"filling {name}", (place + last / rows) / len(tables))
    await _fill_experience(engine, rows, begin)
    if postgres:
        # By itself it does so within a minute; SQLite never does.
        async with engine.begin() as connection:
            await connection.execute(text("ANALYZE"))


async def _fill_experience(engine: AsyncEngine, rows: int, begin: float) -> None:
    """The newest twentieth of the requests as the shipped classifier's vectors: what drift, kinds of prompts and the
    curve are taken of."""
    manifest, rng = load_manifest(default_artefact()), np.random.default_rng(0)
    width = len(manifest.feature_names) + len(manifest.heads)
    vectors = rng.normal(size=(VECTORS, manifest.encoder["dim"])).astype("<f4")
    for first in range(rows - rows // 20 + 1, rows + 1, VECTORS):
        stored = [
            {
                "request_id": f"chatcmpl-{n}",
                "source": "probe" if n % 3 == 0 else "verification",
                "feature_spec": feature_spec(manifest),
                "embedding": vectors[n % VECTORS].tobytes(),
                "features": bytes(4 * width),
                "no_worse": [n % 2 == 0, n % 5 > 0, True, True],
                "weights": [1.0] * 4,
                "classes": [[0.7, 0.1, 0.1, 0.1], [0.1, 0.1, 0.2, 0.6]][n % 2],
                "key_id": f"key-{n % 4}",
                "created_at": begin + n * SPAN_SECONDS / rows,
            }
            for n in range(first, min(first + VECTORS, rows + 1))
        ]
        async with engine.begin() as connection:
            await connection.execute(training_rows.insert(), stored)


def queries(columns: Mapping[str, Column], begin: float = 0.0) -> list[dict[str, Any]]:
    """Every combination of filters, by common values, by rare ones and by both in turn; bounded in time as well."""
    found: dict[str, dict[str, Any]] = {}
    for names in chain.from_iterable(combinations(columns, n) for n in range(len(columns) + 1)):
        for turn in range(4):
            chosen = {
                name: columns[name].values[turn if turn < 2 else (place + turn) % 2] for place, name in enumerate(names)
            }
            for bounds in ({}, {"since": begin + SPAN_SECONDS / 3, "until": begin + SPAN_SECONDS / 2}):
                query = chosen | bounds
                found[str(query)] = query
    return list(found.values())


async def bench_lists(
    settings: Settings, *, rows: int, repeats: int, progress: Progress, only: str | None = None
) -> list[ListTime]:
    """Fill the database of `settings`, which must be empty, and ask for pages over HTTP: each query `repeats` times,
    and for the page after the first where there is one. Of the list `only`, or of all and the dashboard's pages."""
    # The trailing day is what the monitor looks at.
    begin = float(round(time.time()) - SPAN_SECONDS)
    await migrate(settings.database)
    engine = open_database(settings.database)
    try:
        await fill(engine, rows, progress, begin, only)
    finally:
        await engine.dispose()
    found, admin = [], secrets.token_urlsafe(24)
    async with (
        served(msgspec.structs.replace(settings, admin_keys=f"bench={admin}"), 0.02) as (port, _),
        httpx.AsyncClient(
            base_url=f"http://127.0.0.1:{port}/admin/api", timeout=60, headers={"authorization": f"Bearer {admin}"}
        ) as http,
    ):
        for name, (_, columns, _) in LISTS.items():
            if only in (None, name):
                found.append(await _time(http, name, rows, queries(columns, begin), repeats, progress))
        if only is not None:
            return found
        found += [await _time(http, name, rows, [{}], 10 * repeats, progress) for name in SUMMARIES]
        found += await _time_pages(f"http://127.0.0.1:{port}", admin, rows, 10 * repeats, progress)
    return found


async def _time_pages(url: str, admin: str, rows: int, repeats: int, progress: Progress) -> list[ListTime]:
    """Every page of the dashboard, as a browser's first request for it."""
    found = []
    async with httpx.AsyncClient(base_url=url, timeout=60) as http:
        await sign_in(http, admin)
        for page in PAGES:
            path, times = f"/admin{page.path}".rstrip("/"), []
            for turn in range(repeats + 1):
                progress(path, turn / (repeats + 1))
                began = time.perf_counter()
                (await http.get(path)).raise_for_status()
                times.append((time.perf_counter() - began) * 1e3)
            found.append(_summary(path, rows, {"": times[1:]}))
    return found


async def _time(
    http: httpx.AsyncClient, name: str, rows: int, asked: list[dict[str, Any]], repeats: int, progress: Progress
) -> ListTime:
    times: dict[str, list[float]] = {}
    for turn in range(repeats + 1):
        for place, query in enumerate(asked):
            progress(name, (turn + place / len(asked)) / (repeats + 1))
            following = await _page(http, name, query, times, counted=turn > 0)
            if following is not None:
                await _page(http, name, query | {"cursor": following}, times, counted=turn > 0)
    return _summary(name, rows, times)


def _summary(name: str, rows: int, times: dict[str, list[float]]) -> ListTime:
    everything = sorted(chain.from_iterable(times.values()))
    slowest = max(times, key=lambda query: min(times[query]))
    return ListTime(
        endpoint=name,
        rows=rows,
        queries=len(times),
        requests=len(everything),
        p50_ms=round(statistics.median(everything), 2),
        p99_ms=round(everything[int(0.99 * (len(everything) - 1))], 2),
        slowest_best_ms=round(min(times[slowest]), 2),
        slowest=slowest,
    )


async def _page(
    http: httpx.AsyncClient, name: str, query: dict[str, Any], times: dict[str, list[float]], *, counted: bool
) -> str | None:
    began = time.perf_counter()
    answer = await http.get(f"/{name}", params=query)
    took = (time.perf_counter() - began) * 1e3
    answer.raise_for_status()
    if counted:
        times.setdefault(str(answer.url.query.decode()), []).append(took)
    following: str | None = answer.json().get("next")
    return following
