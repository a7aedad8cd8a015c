"""Embeddings of a provider's model: what the server gets and gives, who pays, and what is recorded."""

import asyncio
import base64
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from gateway.base.settings import Settings
from quality.records.record import EmbeddingRecord
from tests.polling import eventually
from tests.support.administrator import bearer
from tests.support.app import RunningGateway, running_gateway
from tests.support.upstream import Call, Handler, LoopbackServer, write_remote_catalog
from tiers.catalog.load import load_catalog
from tiers.catalog.pricing import request_cost_usd
from tiers.errors import CatalogError

TOKEN_USD = 0.5e-6
ENTRY = """
[[embeddings]]
name = "remote"
url = "{url}"
model = "text-embed"
api_key_env = "EMBED_KEY"
input_usd_per_million = 0.5
max_inputs = {max_inputs}
"""
KEY = "sk-embed-secret"


def vector(text: Any, dimensions: int = 4) -> list[float]:
    return [float(len(text)), 0.1, -2.5, 1e-7][:dimensions]


async def answering(call: Call) -> None:
    """As OpenAI does, in reverse order."""
    body = call.body
    each = [vector(text, body.get("dimensions", 4)) for text in body["input"]]
    if body.get("encoding_format") == "base64":
        written: list[Any] = [base64.b64encode(struct.pack(f"<{len(one)}f", *one)).decode() for one in each]
    else:
        written = list(each)
    data = [{"object": "embedding", "index": n, "embedding": one} for n, one in enumerate(written)]
    usage = {"prompt_tokens": 3 * len(each), "total_tokens": 3 * len(each)}
    await call.reply(200, {"object": "list", "data": data[::-1], "model": "text-embed", "usage": usage})


@asynccontextmanager
async def embedding_gateway(
    folder: Path, monkeypatch: pytest.MonkeyPatch, handler: Handler = answering, max_inputs: int = 2048
) -> AsyncIterator[tuple[RunningGateway, LoopbackServer]]:
    monkeypatch.setenv("EMBED_KEY", KEY)
    async with LoopbackServer(handler) as server:
        catalog = write_remote_catalog(folder / "catalog.toml", server.base_url)
        catalog.write_text(catalog.read_text() + ENTRY.format(url=server.base_url, max_inputs=max_inputs))
        settings = Settings(data_dir=str(folder / "data"), monitor=False, catalog=str(catalog))
        async with running_gateway(settings) as gateway:
            yield gateway, server


Served = tuple[RunningGateway, LoopbackServer]
SHARED = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shared(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Served]:
    with pytest.MonkeyPatch.context() as environment:
        async with embedding_gateway(tmp_path_factory.mktemp("embeddings"), environment) as served:
            yield served


@pytest.fixture
def remote(shared: Served) -> Served:
    """The module's gateway and its server, which answers as OpenAI does until a test says how, and was not called."""
    _, server = shared
    server.handler = answering
    server.calls.clear()
    return shared


async def ask(gateway: RunningGateway, given: Any, **fields: Any) -> Any:
    headers = fields.pop("headers", None)
    return await gateway.http.post("/v1/embeddings", json={"model": "remote", "input": given} | fields, headers=headers)


async def recorded(gateway: RunningGateway, request_id: str) -> EmbeddingRecord:
    record = await gateway.serving.records.find(request_id)
    assert isinstance(record, EmbeddingRecord)
    return record


@SHARED
async def test_vectors_come_as_the_server_wrote_them_and_are_billed_by_its_count(remote: Served) -> None:
    gateway, server = remote
    answer = await ask(gateway, ["a", "bcd"], dimensions=3, user="u1")
    body = answer.json()
    record = await recorded(gateway, answer.headers["x-request-id"])
    assert [one["embedding"] for one in body["data"]] == [vector("a", 3), vector("bcd", 3)]
    assert [one["index"] for one in body["data"]] == [0, 1]
    assert (body["model"], body["usage"]) == ("remote", {"prompt_tokens": 6, "total_tokens": 6})
    [call] = server.calls
    assert call.path == "/v1/embeddings"
    assert call.body == {"model": "text-embed", "input": ["a", "bcd"], "dimensions": 3, "user": "u1"}
    assert call.headers["authorization"] == f"Bearer {KEY}"
    assert (record.status, record.prompt_tokens, record.cost_usd) == ("ok", 6, pytest.approx(6 * TOKEN_USD))
    assert float(answer.headers["x-aio-cost-usd"]) == pytest.approx(6 * TOKEN_USD)
    [attempt] = record.attempts
    assert attempt.price is not None
    assert request_cost_usd(attempt.price, attempt.prompt_tokens, 0) == pytest.approx(record.cost_usd)


@SHARED
@pytest.mark.parametrize("server_form", ["asked", "float", "base64"])
@pytest.mark.parametrize("form", ["float", "base64"])
async def test_both_forms_are_given_whichever_the_server_has(remote: Served, server_form: str, form: str) -> None:
    async def stubborn(call: Call) -> None:
        if server_form != "asked":
            call.body["encoding_format"] = server_form
        await answering(call)

    gateway, server = remote
    server.handler = stubborn
    [one] = (await ask(gateway, "abc", encoding_format=form)).json()["data"]
    client = await gateway.openai.embeddings.create(model="text-embed", input="abc")
    got = one["embedding"]
    if form == "base64":
        got = list(struct.unpack("<4f", base64.b64decode(got)))
    assert got == pytest.approx(vector("abc"))
    assert client.data[0].embedding == pytest.approx(vector("abc"))


async def test_many_inputs_go_in_several_calls_and_come_back_in_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts = ["x" * n for n in range(1, 12)]
    async with embedding_gateway(tmp_path, monkeypatch, max_inputs=4) as (gateway, server):
        body = (await ask(gateway, texts)).json()
        tokens = (await ask(gateway, [[1, 2, 3], [4]])).json()
    assert [one["embedding"][0] for one in body["data"]] == [float(len(text)) for text in texts]
    assert sorted(len(call.body["input"]) for call in server.calls) == [2, 3, 4, 4]
    assert body["usage"]["prompt_tokens"] == 33
    assert [one["embedding"][0] for one in tokens["data"]] == [3.0, 1.0]


@pytest.mark.parametrize(
    ("status", "words", "sizes"),
    [
        (
            400,
            "<400> Value error, batch size is invalid, it should not be larger than 4.",
            [11, 4, 4, 3],
        ),
        (413, "input batch size 11 > maximum allowed batch size 4", [11, 4, 4, 3]),
        (400, "Invalid 'input': array too long. Expected maximum length 4, but got length 11.", [11, 4, 4, 3]),
        (400, "Too many inputs in request, split into more batches.", [11, 5, 2, 2, 1, 5, 2, 2, 1, 1]),
    ],
)
async def test_a_server_that_takes_fewer_inputs_is_asked_by_several_calls_from_then_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, status: int, words: str, sizes: list[int]
) -> None:
    async def small(call: Call) -> None:
        refused = len(call.body["input"]) > 4
        await (call.reply(status, {"error": {"message": words}}) if refused else answering(call))

    texts = ["x" * n for n in range(1, 12)]
    async with embedding_gateway(tmp_path, monkeypatch, small) as (gateway, server):
        first = (await ask(gateway, texts)).json()
        asked = [len(call.body["input"]) for call in server.calls]
        server.calls.clear()
        again = (await ask(gateway, texts)).json()
    assert asked == sizes
    assert max(len(call.body["input"]) for call in server.calls) <= 4
    for body in (first, again):
        assert [one["embedding"][0] for one in body["data"]] == [float(len(text)) for text in texts]
        assert body["usage"]["prompt_tokens"] == 33


@SHARED
async def test_fields_of_the_servers_own_reach_it_also_from_an_extra_body(remote: Served) -> None:
    gateway, server = remote
    answer = await ask(gateway, ["a"], input_type="query", extra_body={"truncate": "END"})
    assert answer.status_code == 200, answer.text
    assert "x-aio-ignored-fields" not in answer.headers
    assert server.calls[0].body == {"model": "text-embed", "input": ["a"], "input_type": "query", "truncate": "END"}


@SHARED
@pytest.mark.parametrize(
    ("status", "error", "expected", "param"),
    [
        (400, {"message": "dimensions is too large", "param": "dimensions", "code": "bad"}, 400, "dimensions"),
        (400, {"message": "odd", "param": "secret_field"}, 400, None),
        (401, {"message": f"wrong key {KEY}"}, 503, None),
        (404, {"message": "no such model"}, 503, None),
        (429, {"message": "slow down"}, 503, None),
        (500, {"message": "oops"}, 503, None),
    ],
)
async def test_errors_of_the_server_are_mapped_free_and_without_the_key(
    remote: Served, status: int, error: Any, expected: int, param: str | None
) -> None:
    async def failing(call: Call) -> None:
        await call.reply(status, {"error": error})

    gateway, server = remote
    server.handler = failing
    answer = await ask(gateway, "abc")
    record = await recorded(gateway, answer.headers["x-request-id"])
    assert (answer.status_code, answer.json()["error"]["param"]) == (expected, param)
    assert KEY not in answer.text + str(record.error)
    assert (record.status, record.http_status, record.cost_usd) == ("error", expected, 0.0)


@SHARED
@pytest.mark.parametrize("bare", [False, True])
@pytest.mark.parametrize(
    "places",
    [({}, {}), ({"index": "0"}, {"index": "1"}), ({"index": 1}, {"index": 2}), ({"index": None}, {"index": None})],
)
async def test_vectors_without_an_index_are_in_the_order_of_the_texts(
    remote: Served, bare: bool, places: tuple[dict[str, Any], ...]
) -> None:
    data = [place | {"embedding": [number]} for place, number in zip(places, (1.0, 2.0), strict=True)]

    async def plain(call: Call) -> None:
        await call.reply(200, data if bare else {"data": data[::-1] if places[0].get("index") else data})

    gateway, server = remote
    server.handler = plain
    answer = await ask(gateway, ["a", "b"])
    assert [one["embedding"] for one in answer.json()["data"]] == [[1.0], [2.0]]


@SHARED
@pytest.mark.parametrize(
    "payload",
    [
        {"embeddings": [[1.0, 2.0]], "prompt_eval_count": 1},
        {"data": [{"index": 0, "embedding": [[1.0, 2.0]]}]},
        [{"index": 0, "embedding": [[1.0, 2.0]]}],
        [[1.0, 2.0]],
        {"embedding": [1.0, 2.0]},
        {"embedding": {"values": [1.0, 2.0]}},
        {"embeddings": {"float": [[1.0, 2.0]]}},
        {"predictions": [{"embeddings": {"values": [1.0, 2.0], "statistics": {"token_count": 1}}}]},
        {"output": {"embeddings": [{"text_index": 0, "embedding": [1.0, 2.0]}]}},
        {"result": {"shape": [1, 2], "data": [[1.0, 2.0]]}, "success": True},
        {"data": [{"object": "list", "data": [{"embedding": [1.0, 2.0], "index": 0}], "index": 0}]},
        {"code": 0, "data": {"data": [{"index": 0, "embedding": [1.0, 2.0]}]}},
    ],
)
async def test_vectors_are_found_where_servers_put_them(remote: Served, payload: Any) -> None:
    async def plain(call: Call) -> None:
        await call.reply(200, payload)

    gateway, server = remote
    server.handler = plain
    answer = await ask(gateway, "a")
    assert [one["embedding"] for one in answer.json()["data"]] == [[1.0, 2.0]]


@SHARED
@pytest.mark.parametrize(
    "payload",
    [
        "nonsense",
        {"data": [{"index": 0, "embedding": [[1.0], [2.0]]}]},
        {"data": []},
        {"data": [{"index": 1, "embedding": [1.0]}]},
        {"data": [{"index": 0, "embedding": [1.0]}, {"index": 0, "embedding": [1.0]}]},
        {"data": [{"index": 0, "embedding": ["x"]}]},
        {"data": [{"index": 0, "embedding": "AAA="}]},
        {"data": [{"index": 0, "embedding": []}]},
    ],
)
async def test_an_answer_that_is_no_vector_is_a_502(remote: Served, payload: Any) -> None:
    async def odd(call: Call) -> None:
        await call.reply(200, payload)

    gateway, server = remote
    server.handler = odd
    answer = await ask(gateway, "abc")
    assert (answer.status_code, answer.json()["error"]["code"]) == (502, "tier_failed")


@SHARED
@pytest.mark.parametrize(("told", "billed"), [(10**9, 402), (0, 101), (None, 101), (77, 77)])
async def test_counts_that_cannot_be_are_not_billed(remote: Served, told: int | None, billed: int) -> None:
    async def counting(call: Call) -> None:
        usage = None if told is None else {"prompt_tokens": told, "total_tokens": told}
        await call.reply(200, {"data": [{"index": 0, "embedding": [1.0]}], "usage": usage})

    gateway, server = remote
    server.handler = counting
    answer = await ask(gateway, "x" * 400)
    assert answer.json()["usage"]["prompt_tokens"] == billed


async def test_finished_calls_are_billed_where_another_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = asyncio.Event()

    async def one_fails(call: Call) -> None:
        if call.body["input"] == ["good"]:
            await answering(call)
            first.set()
            return
        await first.wait()
        await call.reply(500, {"error": {"message": "oops"}})

    async with embedding_gateway(tmp_path, monkeypatch, one_fails, max_inputs=1) as (gateway, _):
        answer = await ask(gateway, ["good", "bad"])
        record = await recorded(gateway, answer.headers["x-request-id"])
    assert answer.status_code == 503
    assert record.cost_usd in (0.0, pytest.approx(3 * TOKEN_USD))
    assert (record.prompt_tokens, record.status) in ((3, "error"), (0, "error"))


async def test_a_caller_who_leaves_pays_for_what_was_sent_and_the_call_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def silent(call: Call) -> None:
        await asyncio.Event().wait()

    async with embedding_gateway(tmp_path, monkeypatch, silent) as (gateway, server):
        seen: list[EmbeddingRecord] = []
        monkeypatch.setattr(gateway.serving.records, "append", seen.append)
        asking = asyncio.create_task(ask(gateway, "x" * 40))
        await eventually(lambda: server.calls)
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)
        await server.disconnected.wait()
        await eventually(lambda: seen)
        [record] = seen
    assert (record.status, record.prompt_tokens) == ("aborted", 11)


async def test_a_budget_holds_the_most_that_the_texts_can_cost_and_pays_what_they_did(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with embedding_gateway(tmp_path, monkeypatch) as (gateway, server):
        own = bearer(await gateway.key("small"))
        await gateway.budget("small", 0.01, "month")
        # 20,000 tokens cost the whole budget; no tokeniser makes more than one of a byte.
        refused = await ask(gateway, ["x" * 7000] * 3, headers=own)
        for _ in range(3):
            assert (await ask(gateway, "x" * 1500, headers=own)).status_code == 200
    assert (refused.status_code, refused.json()["error"]["code"]) == (429, "insufficient_quota")
    assert len(server.calls) == 3


@SHARED
async def test_texts_that_must_stay_here_reach_no_server_elsewhere(remote: Served) -> None:
    gateway, server = remote
    answer = await ask(gateway, "abc", headers={"x-aio-consent": "local"})
    assert (answer.status_code, answer.json()["error"]["param"]) == (403, "model")
    assert server.calls == []


@SHARED
async def test_an_empty_text_is_refused_by_place(remote: Served) -> None:
    gateway, server = remote
    answer = await ask(gateway, ["a", ""])
    assert (answer.status_code, answer.json()["error"]["param"], server.calls) == (400, "input[1]", [])


def catalogued(tmp_path: Path, entry: str) -> Any:
    catalog = write_remote_catalog(tmp_path / "catalog.toml", "http://127.0.0.1:9/v1")
    catalog.write_text(f"{catalog.read_text()}\n[[embeddings]]\n{entry}")
    return load_catalog(str(catalog)).embeddings[0]


def test_a_provider_gives_address_key_and_price(tmp_path: Path) -> None:
    spec = catalogued(tmp_path, 'name = "small"\nprovider = "openai"\nmodel = "text-embedding-3-small"')
    assert (spec.url, spec.api_key_env) == ("https://api.openai.com/v1", "OPENAI_API_KEY")
    assert (spec.input_usd_per_million, spec.max_tokens, spec.is_remote) == (0.02, 8192, True)
    assert spec.listed.startswith("genai-prices ")


@pytest.mark.parametrize(
    ("entry", "said"),
    [
        ('name = "x"\nprovider = "anthropic"\nmodel = "m"\ninput_usd_per_million = 1', "no embeddings"),
        ('name = "x"\nprovider = "openai"\nmodel = "no-such-model"', "input_usd_per_million"),
        ('name = "x"\nurl = "http://h/v1"\npath = "/p"\ninput_usd_per_million = 1', "needs model"),
        ('name = "x"\nurl = "http://169.254.169.254/v1"\nmodel = "m"\ninput_usd_per_million = 1', "metadata"),
    ],
)
def test_an_entry_that_cannot_work_is_refused(tmp_path: Path, entry: str, said: str) -> None:
    with pytest.raises(CatalogError, match=said):
        catalogued(tmp_path, entry)


@pytest.mark.parametrize(
    "words",
    [
        {"error": {"message": "vertex_ai does not support parameters: {'encoding_format': 'base64'}"}},
        {"error": {"message": "Unsupported", "param": "encoding_format"}},
        {"detail": [{"type": "extra_forbidden", "loc": ["body", "encoding_format"], "msg": "Extra inputs"}]},
    ],
)
async def test_a_server_that_knows_only_numbers_is_asked_for_them_and_the_gateway_encodes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: Any
) -> None:
    asked: list[bool] = []

    async def strict(call: Call) -> None:
        asked.append("encoding_format" in call.body)
        await (call.reply(400, words) if asked[-1] else answering(call))

    async with embedding_gateway(tmp_path, monkeypatch, strict) as (gateway, _):
        for form in ("base64", "float", "base64"):
            answer = await ask(gateway, ["abc"], encoding_format=form)
            assert answer.status_code == 200, answer.text
            found = answer.json()["data"][0]["embedding"]
            numbers = list(struct.unpack("<4f", base64.b64decode(found))) if form == "base64" else found
            assert numbers == pytest.approx(vector("abc"))
    # The refusal is asked for once.
    assert asked == [True, False, False, False]


async def test_another_refusal_is_the_callers_even_where_a_form_is_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Any] = []

    async def refuses(call: Call) -> None:
        asked.append(call.body)
        await call.reply(400, {"error": {"message": "bad input", "param": "input"}})

    async with embedding_gateway(tmp_path, monkeypatch, refuses) as (gateway, _):
        assert (await ask(gateway, ["abc"], encoding_format="base64")).status_code == 400
    assert len(asked) == 1
