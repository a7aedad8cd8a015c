"""A database or a disk that hangs with open connections: every request is answered, and no record is lost."""

import signal
import sqlite3
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from quality.store.drivers import STALL_SECONDS
from tests.gateway.processes.hanging import ANSWERED_SECONDS, BODY, Callers, HangingCalls, database_requests, probes
from tests.gateway.processes.test_dependency_faults import stored
from tests.polling import until
from tests.support.served import ENDED_SECONDS, served
from tests.support.upstream import Upstream, write_remote_catalog

pytestmark = pytest.mark.processes

UNAVAILABLE = (503, "database_unavailable")
BUDGET = {"kind": "key", "subject": "budgeted", "period": "total", "amount_usd": 1.0}


@pytest.fixture
def catalog(own_upstream: Upstream, tmp_path: Path) -> str:
    return str(write_remote_catalog(tmp_path / "catalog.toml", own_upstream.base_url))


def test_a_stopped_postgresql_leaves_no_request_unanswered_and_costs_no_record(
    catalog: str, tmp_path: Path, postgres_server: Any, postgres_url: str
) -> None:
    with served(tmp_path / "data", tmp_path / "cache", "--catalog", catalog, "--database-url", postgres_url) as aio:
        callers = Callers(aio)
        plain, budgeted = callers.key("plain"), callers.key("budgeted")
        assert callers.ask("PUT", "/admin/api/budgets", callers.admin, json=BUDGET).answer.status_code == 200
        until(lambda: callers.chat(budgeted).answer.headers["x-aio-cost-usd"])
        # Every slice in memory is used up or returned, so that the next one has to be leased.
        until(lambda: _budget(callers)["leased_usd"] == 0)
        until(lambda: callers.metric("aio_ledger_lag_records") == 0)
        before = stored(postgres_url)
        with postgres_server.suspended():
            wanted = database_requests(plain, callers.admin)
            several = {f"budgeted {n}": ("POST", "/v1/chat/completions", budgeted, {"json": BODY}) for n in range(4)}
            asked = callers.all_at_once(wanted | several | probes())
            refusals = {name: one.failure for name, one in asked.items() if name in wanted}
            assert refusals == dict.fromkeys(wanted, UNAVAILABLE)
            assert {asked[name].failure for name in several} == {(503, "budget_unavailable")}
            assert {asked[name].answer.status_code for name in probes()} == {200}
            assert {name for name, one in asked.items() if one.seconds > ANSWERED_SECONDS} == set()
            away = [callers.chat(plain).answer for _ in range(3)]
            assert {answer.status_code for answer in away} == {200}
            assert callers.metric("aio_ledger_lag_records") == 3
        until(lambda: callers.chat(budgeted).answer.status_code == 200)
        until(lambda: callers.metric("aio_ledger_lag_records") == 0)
        ids = {answer.headers["x-aio-decision-id"] for answer in away}
        now = stored(postgres_url)
        assert now >= ids
        assert len(now - before) == len(ids) + 1
        # The book has whole micro-dollars, rounded up.
        cost = 2 * float(away[0].headers["x-aio-cost-usd"])
        until(lambda: 0 <= round(_budget(callers)["spent_usd"] - cost, 12) < 1e-6)


def _budget(callers: Callers) -> dict[str, Any]:
    row: dict[str, Any] = callers.ask("GET", "/admin/api/budgets", callers.admin).answer.json()["rows"][0]
    return row


def test_a_gateway_ends_in_time_while_postgresql_is_stopped_and_the_next_one_stores_its_records(
    catalog: str, tmp_path: Path, postgres_server: Any, postgres_url: str
) -> None:
    options = ["--catalog", catalog, "--database-url", postgres_url]
    with served(tmp_path / "data", tmp_path / "cache", *options) as aio:
        callers = Callers(aio)
        plain = callers.key("plain")
        with postgres_server.suspended():
            asked = callers.chat(plain).answer
            aio.process.send_signal(signal.SIGTERM)
            assert aio.process.wait(ENDED_SECONDS) == 0
    with served(tmp_path / "data", tmp_path / "cache", *options):
        until(lambda: stored(postgres_url) == {asked.headers["x-aio-decision-id"]})


def test_a_sqlite_file_that_another_process_has_locked_fails_writes_in_time(catalog: str, tmp_path: Path) -> None:
    data = tmp_path / "data"
    with served(data, tmp_path / "cache", "--catalog", catalog) as aio:
        callers = Callers(aio)
        plain = callers.key("plain")
        with closing(sqlite3.connect(data / "aio.sqlite3", isolation_level=None)) as other:
            other.execute("BEGIN EXCLUSIVE")
            wanted = database_requests(plain, callers.admin)
            asked = callers.all_at_once(wanted | probes())
            assert {asked[name].failure for name in ("upload", "new key")} == {UNAVAILABLE}
            assert {asked[name].answer.status_code for name in probes()} == {200}
            assert {name for name, one in asked.items() if one.seconds > ANSWERED_SECONDS} == set()
            away = callers.chat(plain).answer
            other.execute("ROLLBACK")
        until(lambda: away.headers["x-aio-decision-id"] in _stored(data))
        assert callers.ask(*wanted["upload"][:3], **wanted["upload"][3]).answer.status_code == 200


def test_a_disk_that_stalls_keeps_no_request_waiting_and_its_records_are_stored_afterwards(
    catalog: str, tmp_path: Path
) -> None:
    data, calls = tmp_path / "data", HangingCalls(tmp_path)
    with served(data, tmp_path / "cache", "--catalog", catalog, environment=calls.environment) as aio:
        callers = Callers(aio)
        plain = callers.key("plain")
        with calls.disk():
            wanted = database_requests(plain, callers.admin)
            asked = callers.all_at_once(wanted | probes())
            assert {asked[name].failure for name in ("upload", "new key")} == {UNAVAILABLE}
            assert {asked[name].answer.status_code for name in probes()} == {200}
            assert {name for name, one in asked.items() if one.seconds > ANSWERED_SECONDS} == set()
            away = callers.chat(plain).answer
            assert away.status_code == 200
        until(lambda: away.headers["x-aio-decision-id"] in _stored(data))


def test_a_disk_that_stalls_for_five_seconds_fails_no_request(catalog: str, tmp_path: Path) -> None:
    """Neither one whose budget's slice is used up, of more budgets than there are connections, nor a stored response
    that the next one goes on from."""
    data, calls = tmp_path / "data", HangingCalls(tmp_path)
    with served(data, tmp_path / "cache", "--catalog", catalog, environment=calls.environment) as aio:
        callers = Callers(aio)
        plain, budgeted = callers.key("plain"), [callers.key(f"budgeted {n}") for n in range(_BUDGETS)]
        for n in range(_BUDGETS):
            order = BUDGET | {"subject": f"budgeted {n}"}
            assert callers.ask("PUT", "/admin/api/budgets", callers.admin, json=order).answer.status_code == 200
        spent = callers.all_at_once({str(n): _chat(key) for n, key in enumerate(budgeted)})
        assert {one.answer.status_code for one in spent.values()} == {200}
        # Every slice in memory is returned, so that the next one has to be leased.
        until(lambda: _leased(callers) == 0)
        turn = {"model": "tier-1", "input": "Hello there"}
        wanted = {f"budget {n}": _chat(key) for n, key in enumerate(budgeted)}
        wanted |= {f"plain {n}": _chat(plain) for n in range(4)}
        wanted |= {f"response {n}": ("POST", "/v1/responses", plain, {"json": turn}) for n in range(4)}
        # By the clock: a busy machine must not make it longer than what requests are promised to wait for.
        with ThreadPoolExecutor(1) as pool, calls.disk(STALL_SECONDS):
            asked = pool.submit(callers.all_at_once, wanted)
            until(lambda: "durability" in _problems(callers).get("journal", ""))
        answers = {name: one.answer for name, one in asked.result().items()}
        assert {name: answer.text for name, answer in answers.items() if answer.status_code != 200} == {}
        for n in range(4):
            later = turn | {"previous_response_id": answers[f"response {n}"].json()["id"]}
            assert callers.ask("POST", "/v1/responses", plain, json=later).answer.status_code == 200
        until(lambda: {answer.headers["x-aio-decision-id"] for answer in answers.values()} <= _stored(data))
        until(lambda: callers.metric("aio_journal_lag_seconds") == 0)


_BUDGETS = 20


def _problems(callers: Callers) -> dict[str, str]:
    """What is wrong with a gateway that is ready all the same."""
    answer = callers.ask("GET", "/health/ready", {}).answer
    assert answer.status_code == 200, answer.text
    found: dict[str, str] = answer.json().get("problems", {})
    return found


def _chat(key: dict[str, str]) -> tuple[Any, ...]:
    return "POST", "/v1/chat/completions", key, {"json": BODY}


def _leased(callers: Callers) -> float:
    rows = callers.ask("GET", "/admin/api/budgets", callers.admin).answer.json()["rows"]
    return sum(row["leased_usd"] for row in rows)


def test_a_gateway_ends_in_time_while_its_disk_stalls(catalog: str, tmp_path: Path) -> None:
    data, calls = tmp_path / "data", HangingCalls(tmp_path)
    environment = calls.environment | {"AIO_DRAIN_SECONDS": "1"}
    with served(data, tmp_path / "cache", "--catalog", catalog, environment=environment) as aio:
        callers = Callers(aio)
        plain = callers.key("plain")
        with calls.disk():
            assert callers.chat(plain).answer.status_code == 200
            aio.process.send_signal(signal.SIGTERM)
            assert aio.process.wait(ENDED_SECONDS) == 0


def _stored(data: Path) -> set[str]:
    with closing(sqlite3.connect(data / "aio.sqlite3")) as database:
        return {request_id for (request_id,) in database.execute("SELECT request_id FROM requests")}
