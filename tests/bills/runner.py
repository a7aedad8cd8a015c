"""Sends each row to a gateway in this process, in front of scripted servers, and compares its bill with the published
one."""

import os
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import httpx

from tests.bills.row import Answered, Row
from tests.support.administrator import bearer
from tests.support.app import RunningGateway, gateway_of
from tests.support.upstream import Call, LoopbackServer

WITHIN = 1.05
"""The most that a bill may differ from the published one, either way."""
_KEY_VARIABLE = "AIO_TEST_BILLS_KEY"
_TIERS = """
[[tiers]]
name = "small"
url = "{url}"
model = "small"

[[tiers]]
name = "large"
url = "{url}"
model = "large"
"""
_TARGET = """
[[targets]]
name = "{name}"
provider = "{provider}"
url = "{url}"
model = "{model}"
api_key_env = "{key}"
{more}
"""


class Bill(NamedTuple):
    """What became of a row. `billed`: US dollars. `outcome`: `billed`, `refused`, `estimate` or an error in words;
    `why`: the message of a refusal, which is shown of a wrong one. `is_unpriced`: whether the record says that
    something has no known price."""

    row: Row
    billed: float
    outcome: str
    why: str = ""
    is_unpriced: bool = False

    @property
    def ratio(self) -> float | None:
        """The bill by the published one; None for a refusal, and for what is free."""
        return self.billed / self.row.usd if self.outcome in ("billed", "estimate") and self.row.usd else None

    @property
    def is_right(self) -> bool:
        """Whether the row came out as expected: a bill is near the published one."""
        if self.outcome != self.row.expected:
            return False
        near = self.billed == 0.0 if self.ratio is None else 1 / WITHIN <= self.ratio <= WITHIN
        return self.outcome != "billed" or near


async def bills(rows: Sequence[Row]) -> list[Bill]:
    """Send all `rows`, one after another."""
    os.environ[_KEY_VARIABLE] = "sk-test-bills"
    waiting: list[Row] = []

    async def answer(call: Call) -> None:
        await waiting[-1].answer(call)

    with tempfile.TemporaryDirectory() as folder:
        async with (
            LoopbackServer(answer) as server,
            gateway_of(Path(folder), _catalog(rows, server.base_url), protocol="httptools") as gateway,
        ):
            keys = await _keys(gateway, rows)
            found = []
            for row in rows:
                waiting.append(row)
                found.append(await _bill(gateway, row, keys[row.budget]))
            return found


async def _bill(gateway: RunningGateway, row: Row, key: str) -> Bill:
    headers = bearer(key) | {"x-aio-cache": "off"}
    async with httpx.AsyncClient(base_url=gateway.url, timeout=60, headers=headers) as client:
        answered = await (_post(client, row) if row.send is None else row.send(client))
    if 400 <= answered.status < 500:
        return Bill(row, 0.0, "refused", answered.text)
    # A caller that left: its record waits for what the provider bills.
    await gateway.serving.service.idle()
    ledger = gateway.serving.records
    await ledger.recorded(answered.request_id)  # type: ignore[attr-defined]
    record = await ledger.find(answered.request_id)
    if record is None or answered.status != 200:
        return Bill(row, 0.0, f"{answered.status}: {answered.text[:200]}")
    is_estimate = any(getattr(attempt, "estimated", False) for attempt in record.attempts)
    is_unpriced = any("unpriced" in said for attempt in record.attempts for said in getattr(attempt, "extras", ()))
    return Bill(row, record.cost_usd, "estimate" if is_estimate else "billed", is_unpriced=is_unpriced)


async def _post(client: httpx.AsyncClient, row: Row) -> Answered:
    told = await client.post(f"/v1/{row.api}", json={"model": row.server.name} | row.request)
    return Answered(told.status_code, told.headers.get("x-request-id", ""), told.text)


async def _keys(gateway: RunningGateway, rows: Sequence[Row]) -> dict[float | None, str]:
    """A key for each budget that rows have."""
    keys: dict[float | None, str] = {}
    for budget in {row.budget for row in rows}:
        name = f"budget-{budget}"
        keys[budget] = await gateway.key(name)
        if budget is not None:
            await gateway.budget(name, budget)
    return keys


def _catalog(rows: Sequence[Row], url: str) -> str:
    servers = {row.server.name: row.server for row in rows}
    for row in rows:
        assert servers[row.server.name] == row.server, f"two servers are named {row.server.name}"
    targets = [_TARGET.format(url=url, key=_KEY_VARIABLE, **server._asdict()) for server in servers.values()]
    return "".join([_TIERS.format(url=url), *targets])


_HEAD = ("row", "published", "billed", "ratio", "outcome")
_PAGE = """# Bills: what a provider charges, and what a key is charged

`python -m tests.bills --markdown docs/results/bills.md` writes this page. Each row is a request of a key
through a gateway in front of a scripted server, which answers with the usage that the provider would report. The
published bill follows from the provider's price list and that usage. The command ends with 1 if a bill is not within
a factor of {within} of it, unless the request was refused before it was sent, or the record marks its bill as an
estimate.

"""


def cells(bill: Bill) -> tuple[str, ...]:
    """The cells of a row."""
    refused = bill.outcome == "refused"
    ratio = "" if bill.ratio is None else f"{bill.ratio:.3f}"
    outcome = bill.outcome if bill.is_right else f"WRONG, {bill.row.expected} expected: {bill.outcome} {bill.why}"
    return bill.row.name, f"${bill.row.usd:.6f}", "" if refused else f"${bill.billed:.6f}", ratio, outcome


def line(bill: Bill) -> str:
    """A row for a terminal."""
    name, *others = cells(bill)
    return f"{name:72} " + " ".join(f"{one:>12}" for one in others)


def page(found: Sequence[Bill]) -> str:
    """The page of docs/results."""
    rows = [_HEAD, ("---", "---:", "---:", "---:", "---"), *(_linked(bill) for bill in found)]
    table = "\n".join(f"| {' | '.join(row)} |" for row in rows)
    return f"{_PAGE.format(within=WITHIN)}{table}\n"


def _linked(bill: Bill) -> tuple[str, ...]:
    name, published, *others = cells(bill)
    return name, f"[{published}]({bill.row.source})", *others
