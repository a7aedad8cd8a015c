"""Two gateway replicas over one PostgreSQL and one Redis, under mixed load, while one is killed: no acknowledged
request is lost, and no budget is exceeded or forgotten."""

import asyncio
import threading
import time
from contextlib import ExitStack
from itertools import count
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest
from sqlalchemy import select

from migrations.tables.requests import requests
from quality.store.database import open_database
from tests.support.served import ServedProcess, served
from tests.support.upstream import Upstream, write_remote_catalog

CHAT = "/v1/chat/completions"
ADMIN = {"authorization": "Bearer test-admin-07158b06243a3ef4b8e7746013aa659a"}
ASKERS = 8
ACKNOWLEDGED = 400
# Micro-dollars of 10 prompt tokens and 3 answer tokens at tier 4; ada may spend about 150 of these.
COST = 10 * 100 + 3 * 300
BUDGET_USD = 150.5 * COST / 1e6


class Acknowledged(msgspec.Struct, frozen=True):
    """A request whose answer arrived completely: its owner, its replica, and when (monotonic seconds)."""

    request_id: str
    owner: str
    replica: int
    ended: float


class Load:
    """Clients that alternate replicas, keys, and whole or streamed answers, until stopped."""

    def __init__(self, urls: list[str], keys: dict[str, str]) -> None:
        self._urls, self._keys = urls, keys
        self.acknowledged: list[Acknowledged] = []
        self.refused = 0
        self.unexpected: list[str] = []
        self._turns = count()
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=self._ask_on) for _ in range(ASKERS)]

    def __enter__(self) -> "Load":
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def until(self, acknowledged: int) -> None:
        while len(self.acknowledged) < acknowledged and not self.unexpected:
            time.sleep(0.01)

    def _ask_on(self) -> None:
        with httpx.Client(timeout=30) as client:
            while not self._stop.is_set():
                turn = next(self._turns)
                owner = ("ada", "bob")[turn // 2 % 2]
                try:
                    self._ask(client, turn % 2, owner, stream=turn // 4 % 2 == 1)
                except httpx.TransportError:
                    # The replica was killed: its caller asks the other.
                    self._stop.wait(0.01)

    def _ask(self, client: httpx.Client, replica: int, owner: str, *, stream: bool) -> None:
        body = {
            "model": "tier-4",
            "messages": [{"role": "user", "content": "Hello there again"}],
            "max_tokens": 5,
            "stream": stream,
        }
        headers = {"authorization": f"Bearer {self._keys[owner]}"}
        answer = client.post(f"{self._urls[replica]}{CHAT}", json=body, headers=headers)
        whole = answer.text.endswith("data: [DONE]\n\n") if stream else True
        if answer.status_code == 200 and whole:
            self.acknowledged.append(
                Acknowledged(answer.headers["x-aio-decision-id"], owner, replica, time.monotonic())
            )
        elif answer.status_code == 429 and owner == "ada":
            self.refused += 1
        else:
            self.unexpected.append(f"{answer.status_code} {answer.text[:300]}")


def order(aio: ServedProcess, method: str, path: str, body: dict[str, Any]) -> Any:
    answer = httpx.request(method, f"{aio.url}/admin/api{path}", json=body, headers=ADMIN)
    assert answer.is_success, answer.text
    return answer.json()


def budget_spent(aio: ServedProcess) -> tuple[float, float]:
    row = httpx.get(f"{aio.url}/admin/api/budgets", headers=ADMIN).json()["rows"][0]
    return row["spent_usd"], row["leased_usd"]


def stored(url: str) -> dict[str, tuple[str | None, float]]:
    """Owner and cost by request id."""

    async def read() -> dict[str, tuple[str | None, float]]:
        engine = open_database(url)
        async with engine.connect() as connection:
            query = select(requests.c.request_id, requests.c.key_id, requests.c.cost_usd)
            found = (await connection.execute(query)).all()
        await engine.dispose()
        rows = {row.request_id: (row.key_id, row.cost_usd) for row in found}
        assert len(rows) == len(found)
        return rows

    return asyncio.run(read())


@pytest.mark.slow
def test_one_of_two_replicas_is_killed_under_load(
    own_upstream: Upstream, tmp_path: Path, postgres_url: str, redis_url: str
) -> None:
    catalog = write_remote_catalog(tmp_path / "catalog.toml", own_upstream.base_url)
    options = ["--catalog", str(catalog), "--database-url", postgres_url]
    environment = {
        "AIO_REDIS_URL": redis_url,
        "AIO_ADMIN_KEYS": f"root={ADMIN['authorization'].split()[1]}",
        "AIO_KEYS_POLL_SECONDS": "0.2",
        "AIO_MONITOR": "false",
    }

    def replica(name: str) -> Any:
        return served(tmp_path / name, tmp_path / "cache", *options, environment=environment)

    with ExitStack() as stack:
        one, two = stack.enter_context(replica("one")), stack.enter_context(replica("two"))
        issued = {name: order(one, "POST", "/keys", {"name": name}) for name in ("ada", "bob")}
        body = {"kind": "key", "subject": "ada", "period": "total", "amount_usd": BUDGET_USD}
        order(one, "PUT", "/budgets", body)
        keys = {name: key["key"] for name, key in issued.items()}
        # Until the other replica knows them.
        for key in keys.values():
            while httpx.get(f"{two.url}/v1/models", headers={"authorization": f"Bearer {key}"}).status_code != 200:
                time.sleep(0.05)
        with Load([one.url, two.url], keys) as load:
            load.until(100)
            killed = time.monotonic()
            two.kill()
            load.until(ACKNOWLEDGED)
        assert not load.unexpected
        assert load.refused, "ada's budget was never reached"

        # Another process finds the records in the killed one's journal.
        again = stack.enter_context(replica("two"))
        safe = [one for one in load.acknowledged if one.replica == 0 or one.ended <= killed - 0.1]
        assert {one.replica for one in safe} == {0, 1}
        while not {one.request_id for one in safe} <= stored(postgres_url).keys():
            time.sleep(0.1)
        owners = {issued[name]["key_id"]: name for name in issued}
        rows = stored(postgres_url)
        assert all(owners[rows[one.request_id][0]] == one.owner for one in safe)

        # The dead replica's lease expires; only then can the whole remainder be spent, and no more.
        headers = {"authorization": f"Bearer {keys['ada']}"}
        question = {"model": "tier-4", "messages": [{"role": "user", "content": "Hello there again"}], "max_tokens": 5}
        deadline = time.monotonic() + 40
        while time.monotonic() < deadline:
            httpx.post(f"{again.url}{CHAT}", json=question, headers=headers, timeout=30)
            time.sleep(0.25)
        for process in (one, again):
            process.process.terminate()
            process.process.wait(60)

    spent = sum(cost for owner, cost in stored(postgres_url).values() if owners[str(owner)] == "ada")
    assert spent <= BUDGET_USD
    with replica("three") as last:
        reported, leased = budget_spent(last)
    assert reported == pytest.approx(spent, abs=1e-9)
    assert leased == 0
    # The remainder would not cover another request, whose bound is about six times its cost.
    assert BUDGET_USD - spent < 7 * COST / 1e6
