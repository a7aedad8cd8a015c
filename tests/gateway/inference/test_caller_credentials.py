"""A tier that answers with the caller's own credential: who gets it, and where it never is."""

import json
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from quality.records.record import Record
from tests.gateway.batches.batching import made, outcome, request_line
from tests.gateway.chained_tiers import HELLO, broken, well
from tests.gateway.inference.api.test_disconnects import only_record
from tests.support.administrator import ADMIN_HEADERS
from tests.support.app import RunningGateway, gateway_of
from tests.support.upstream import Call, LoopbackServer
from tiers.catalog.consent import ALL
from tiers.errors import HEADER

SECRET = "sk-ada-5e3c1f7a9b2d4680"
OWN = {HEADER: f"Bearer {SECRET}"}
CATALOG = """
[[tiers]]
name = "small"
url = "{ours}"
model = "small-model"
price = {{ input_usd_per_million = 1.0, output_usd_per_million = 1.0 }}
{small}

[[tiers]]
name = "own"
url = "{theirs}"
model = "own-model"
credentials = "caller"
price = {{ input_usd_per_million = 10.0, output_usd_per_million = 10.0 }}

[[tiers]]
name = "large"
url = "{ours}"
model = "large-model"
price = {{ input_usd_per_million = 100.0, output_usd_per_million = 100.0 }}

[[targets]]
name = "own-backup"
url = "{theirs}"
model = "own-backup-model"
credentials = "caller"
"""


class World:
    """`ours`: the server of the operator's tiers; `theirs`: that of the tier with the callers' credentials."""

    def __init__(self) -> None:
        self.does: dict[str, Any] = {}
        self.ours, self.theirs = LoopbackServer(self._answer), LoopbackServer(self._answer)
        self.gateway: RunningGateway

    async def _answer(self, call: Call) -> None:
        await self.does.get(call.body["model"].removesuffix("-model"), well)(call)

    @property
    def asked(self) -> list[tuple[str, str]]:
        """The models that were asked, by server, each with the credential that came."""
        calls = [*self.ours.calls, *self.theirs.calls]
        return [(call.body["model"].removesuffix("-model"), call.headers.get("authorization", "")) for call in calls]

    async def ask(
        self, model: str = "own", headers: dict[str, str] | None = None, path: str = "chat/completions", **fields: Any
    ) -> httpx.Response:
        body = {"model": model, "messages": HELLO, "temperature": 0.5, **fields}
        return await self.gateway.http.post(f"/v1/{path}", json=body, headers=OWN if headers is None else headers)

    async def record(self, answer: httpx.Response) -> Record:
        name = answer.headers.get("x-aio-decision-id") or answer.headers["x-request-id"]
        return await only_record(self.gateway, name)

    def choose(self, number: int) -> None:
        """Let routing find tier `number` the first that is good enough."""
        self.gateway.classifier.p_ok = tuple(1.0 if k >= number else 0.01 for k in (1, 2, 3))


@asynccontextmanager
async def world(folder: Path, small: str = "", **fields: Any) -> AsyncIterator[World]:
    made_world = World()
    async with made_world.ours, made_world.theirs:
        urls = {"ours": made_world.ours.base_url, "theirs": made_world.theirs.base_url}
        async with gateway_of(folder, CATALOG.format(**urls, small=small), **fields) as gateway:
            made_world.gateway = gateway
            made_world.choose(1)
            yield made_world


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("sent", "got"), [(f"Bearer {SECRET}", f"Bearer {SECRET}"), (SECRET, f"Bearer {SECRET}")])
async def test_the_tiers_server_gets_it_and_the_record_and_the_price_are_as_ever(
    tmp_path: Path, sent: str, got: str, stream: bool
) -> None:
    async with world(tmp_path) as aio:
        usage = {"stream_options": {"include_usage": True}} if stream else {}
        answer = await aio.ask("own", {HEADER: sent}, stream=stream, **usage)
        assert answer.status_code == 200, answer.text
        assert aio.asked == [("own", got)]
        record = await aio.record(answer)
        assert (record.tier, record.status) == (2, "ok")
        assert record.cost_usd == pytest.approx(12 * 10e-6)
        assert record.consent == ALL, "the record holds for later uses, which have no credential"


@pytest.mark.parametrize("path", ["chat/completions", "messages", "responses"])
async def test_every_api_takes_it(tmp_path: Path, path: str) -> None:
    async with world(tmp_path) as aio:
        body: dict[str, Any] = {"model": "own", "max_tokens": 20, "messages": HELLO}
        if path == "responses":
            body = {"model": "own", "input": "Say hello."}
        answer = await aio.gateway.http.post(f"/v1/{path}", json=body, headers=OWN)
        assert answer.status_code == 200, answer.text
        assert aio.asked == [("own", f"Bearer {SECRET}")]


async def test_without_it_the_tier_is_excluded_with_that_reason(tmp_path: Path) -> None:
    async with world(tmp_path) as aio:
        refused = await aio.ask("own", {})
        assert refused.status_code == 403
        error = refused.json()["error"]
        assert (error["param"], error["code"]) == (HEADER, "upstream_authorization_missing")
        aio.choose(2)
        answer = await aio.ask("auto", {})
        assert answer.headers["x-aio-tier"] == "3"
        reasons = {one.tier: one.reason for one in (await aio.record(answer)).decision.inputs.exclusions}
        assert HEADER in reasons[2]
        assert (await aio.ask("auto")).headers["x-aio-tier"] == "2"
        assert [who for who in aio.asked if who[1]] == [("own", f"Bearer {SECRET}")]


@pytest.mark.parametrize("value", ["", "Bearer", "a b c", "Digest x", "käse", "x" * 8193])
async def test_another_form_of_it_is_a_400_that_does_not_repeat_it(tmp_path: Path, value: str) -> None:
    async with world(tmp_path) as aio:
        header = (HEADER.encode(), value.encode())
        body = {"model": "own", "messages": HELLO}
        answer = await aio.gateway.http.post("/v1/chat/completions", json=body, headers=[header])  # type: ignore[arg-type]
        assert answer.status_code == 400
        assert answer.json()["error"]["param"] == HEADER
        assert len(value) < 8 or value not in answer.text
        assert aio.asked == []


async def test_it_does_not_follow_a_redirect(tmp_path: Path) -> None:
    async with world(tmp_path) as aio:
        other = aio.ours.base_url

        async def elsewhere(call: Call) -> None:
            await call.send(
                f"HTTP/1.1 307 X\r\nlocation: {other}/chat/completions\r\ncontent-length: 0\r\n\r\n".encode()
            )

        aio.does["own"] = elsewhere
        assert (await aio.ask("own", stream=True)).status_code == 503
        assert aio.ours.calls == []


async def test_no_other_tier_gets_it_and_no_failure_leads_to_the_tier(tmp_path: Path) -> None:
    async with world(tmp_path, 'fallback = ["own", "own-backup", "large"]') as aio:
        aio.does["small"] = broken
        answer = await aio.ask("auto")
        assert answer.headers["x-aio-tier"] == "3"
        assert aio.asked == [("small", ""), ("large", "")]
        reason = (await aio.record(answer)).decision.reason
        assert f"not own: it is asked only first, with the caller's own credential ({HEADER})" in reason
        assert "not own-backup: it is asked only first" in reason


async def test_a_tier_that_takes_over_from_it_goes_without(tmp_path: Path) -> None:
    async with world(tmp_path) as aio:
        aio.does["own"] = broken
        aio.choose(2)
        answer = await aio.ask("auto")
        assert answer.headers["x-aio-tier"] == "3"
        assert aio.asked == [("large", ""), ("own", f"Bearer {SECRET}")]


@pytest.mark.parametrize(
    ("status", "code"),
    [(401, "invalid_api_key"), (402, "no_credit"), (403, "forbidden"), (404, "no_model"), (429, "quota")],
)
@pytest.mark.parametrize("model", ["own", "auto"])
async def test_a_refused_credential_is_its_callers_error_and_the_tier_stays_for_others(
    tmp_path: Path, model: str, status: int, code: str
) -> None:
    async def refuse(call: Call) -> None:
        said = {"error": {"message": f"Incorrect API key provided: {SECRET}.", "code": code}}
        await (call.reply(status, said) if SECRET in call.headers["authorization"] else well(call))

    async with world(tmp_path) as aio:
        aio.does["own"] = refuse
        aio.choose(2)
        answer = await aio.ask(model)
        assert answer.status_code == status
        error = answer.json()["error"]
        assert (error["param"], error["code"]) == (HEADER, code)
        assert "Incorrect API key provided: [credential]" in error["message"]
        assert SECRET not in answer.text
        assert (await aio.ask("own", {HEADER: "sk-another"})).status_code == 200
        assert [who for who in aio.asked if who[0] != "own"] == []


async def test_its_answers_are_in_no_cache(tmp_path: Path) -> None:
    async with world(tmp_path) as aio:
        for headers in (OWN, OWN, {HEADER: "sk-another"}):
            for wish in ("use", "refresh"):
                answer = await aio.ask("own", {**headers, "x-aio-cache": wish}, temperature=0)
                assert answer.status_code == 200
        assert len(aio.asked) == 6
        assert (await aio.ask("own", {"x-aio-cache": "use"}, temperature=0)).status_code == 403


async def test_a_batch_has_none(tmp_path: Path) -> None:
    async with world(tmp_path) as aio:
        client = openai.AsyncOpenAI(base_url=f"{aio.gateway.url}/v1", api_key="unused", default_headers=OWN)
        async with client:
            batch = await made(client, [request_line("one", model="own")])
            _, done, failed = await outcome(client, batch.id)
        assert not done
        assert failed["one"]["response"]["body"]["error"]["param"] == HEADER
        assert aio.asked == []


async def test_nothing_stores_or_logs_it(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def echo(call: Call) -> None:
        await call.begin()
        await call.event({"error": {"message": f"the key {SECRET} is odd"}})

    caplog.set_level(logging.DEBUG)
    async with world(tmp_path) as aio:
        answers = [await aio.ask("own", stream=stream) for stream in (False, True)]
        aio.does["own"] = echo
        answers.append(await aio.ask("own", stream=True))
        aio.does["own"] = broken
        answers.append(await aio.ask("own", {HEADER: SECRET}))
        for answer in answers:
            await aio.record(answer)
            assert SECRET not in answer.text + str(answer.headers)
        shown = await aio.gateway.http.get("/admin/api/requests", headers=ADMIN_HEADERS)
        assert SECRET not in shown.text
        assert SECRET not in json.dumps((await aio.gateway.http.get("/metrics")).text)
    assert SECRET not in caplog.text
    assert _holding(tmp_path, SECRET) == []


def _holding(folder: Path, text: str) -> list[Path]:
    return [file for file in folder.rglob("*") if file.is_file() and text.encode() in file.read_bytes()]


@pytest.mark.parametrize(("usd", "status"), [(0.0005, 429), (1.0, 200)])
async def test_a_budget_bounds_it(tmp_path: Path, usd: float, status: int) -> None:
    async with world(tmp_path) as aio:
        http, admin = aio.gateway.http, "/admin/api"
        key = (await http.post(f"{admin}/keys", json={"name": "ada", "terms": {}})).json()["key"]
        budget = {"kind": "key", "subject": "ada", "period": "month", "amount_usd": usd}
        assert (await http.put(f"{admin}/budgets", json=budget)).status_code == 200
        answer = await aio.ask("own", OWN | {"authorization": f"Bearer {key}"}, max_tokens=2)
        assert answer.status_code == status
        assert len(aio.asked) == (status == 200)
