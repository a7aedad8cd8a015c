"""Operators see and change the core's knobs while it serves; every change and refusal can be read back."""

import asyncio
import json
import re
from pathlib import Path
from typing import Any

import httpx
import pytest
from click.testing import CliRunner, Result
from sqlalchemy import text

from gateway.base.settings import Settings
from gateway.cli import main
from gateway.runtime.cores.knobs import CoreKnobs, KnobOrder
from gateway.tenancy.keys.key_secrets import new_key
from inference_core.protocol import Knobs
from quality.store.database import migrate, open_database
from tests.support.administrator import ADMIN_KEY, ADMIN_NAME
from tests.support.app import RunningGateway, running_gateway
from tests.support.core import laptop_hash_core

pytestmark = pytest.mark.asyncio(loop_scope="module")
KNOBS = "/v1/admin/knobs/core"
HELLO = [{"role": "user", "content": "Say the secret word."}]
INT4, BF16 = "smollm2-int4", "smollm2-bf16"


async def values(aio: RunningGateway, knob: str) -> dict[str, Any]:
    models = (await aio.http.get(KNOBS)).json()["models"]
    return {model: knobs[knob] for model, knobs in models.items()}


async def history(aio: RunningGateway, **query: Any) -> list[dict[str, Any]]:
    changes: list[dict[str, Any]] = (await aio.http.get("/v1/admin/knobs/changes", params=query)).json()["changes"]
    return changes


# -- showing and changing --------------------------------------------------------------------------


async def test_knobs_are_shown_with_their_bounds_and_what_they_do(aio: RunningGateway) -> None:
    shown = (await aio.http.get(KNOBS)).json()
    assert set(shown["models"]) == {INT4, BF16}
    assert set(shown["models"][INT4]) == set(shown["knobs"]) == set(Knobs.__struct_fields__)
    chunk = shown["knobs"]["prefill_chunk"]
    assert (chunk["type"], chunk["minimum"], chunk["default"]) == ("integer", 1, 256)
    assert "prompt tokens" in chunk["description"]


@pytest.mark.parametrize(
    ("part", "knob", "value"),
    [
        ("core", "lookup_ngram", 9),
        ("routing", "conversation_seconds", 9.0),
        ("cache", "ttl_seconds", 9.0),
        ("batches", "most_attempts", 9),
    ],
)
async def test_each_part_is_one_resource(aio: RunningGateway, part: str, knob: str, value: float) -> None:
    resource = f"/v1/admin/knobs/{part}"
    for written in (value, None):
        assert (await aio.http.patch(resource, json={knob: written})).status_code == 200
        newest = (await history(aio, knob=knob))[0]
        assert (newest["part"], newest["new_value"] == value) == (part, written == value)
    assert (await aio.http.get(resource)).status_code == 200
    elsewhere = "/v1/admin/knobs" if part == "core" else f"/v1/admin/{part}"
    assert (await aio.http.get(elsewhere)).status_code == 410


async def test_a_change_applies_at_once_returns_what_it_changed_and_is_recorded(aio: RunningGateway) -> None:
    answer = await aio.http.patch(KNOBS, json={"ageing_seconds": 7.5, "model": BF16, "reason": "starving"})
    assert answer.status_code == 200
    body = answer.json()
    assert body["recorded"] is True
    assert body["models"][BF16]["ageing_seconds"] == 7.5
    assert await values(aio, "ageing_seconds") == {INT4: 5.0, BF16: 7.5}
    (change,) = await history(aio, knob="ageing_seconds")
    expected = {"actor": ADMIN_NAME, "part": "core", "model": BF16, "old_value": 5.0, "new_value": 7.5, "kept": False}
    assert expected.items() <= change.items()
    assert (change["reason"], change["refused"]) == ("starving", None)


async def test_a_change_without_a_model_concerns_every_model_and_null_undoes_it(aio: RunningGateway) -> None:
    await aio.http.patch(KNOBS, json={"max_num_seqs": 5, "prefill_chunk": 8192})
    assert await values(aio, "max_num_seqs") == {INT4: 5, BF16: 5}
    answer = await aio.http.patch(KNOBS, json={"max_num_seqs": None, "prefill_chunk": None})
    assert sorted((c["model"], c["knob"], c["new_value"]) for c in answer.json()["changed"]) == [
        (BF16, "max_num_seqs", 64),
        (BF16, "prefill_chunk", 256),
        (INT4, "max_num_seqs", 64),
        (INT4, "prefill_chunk", 256),
    ]


async def test_what_is_set_to_what_it_is_already_is_no_change(aio: RunningGateway) -> None:
    before = await history(aio)
    answer = await aio.http.patch(KNOBS, json={"max_num_seqs": 64})
    assert answer.json()["changed"] == []
    assert await history(aio) == before


@pytest.mark.parametrize(
    ("body", "param", "code"),
    [
        ({"max_num_seqs": 0}, "max_num_seqs", "invalid_value"),
        ({"max_num_seqs": "many"}, "max_num_seqs", "invalid_value"),
        ({"max_num_seqs": {}}, "max_num_seqs", "invalid_value"),
        ({"prefix_caching": 1}, "prefix_caching", "invalid_value"),
        ({"speed": 3}, "speed", "unknown_parameter"),
        ({"max_num_seqs": 3, "model": "gpt-9"}, "model", "invalid_value"),
        ({"reason": 3}, "reason", "invalid_value"),
        ({"keep": "yes"}, "keep", "invalid_value"),
    ],
)
async def test_what_is_wrong_with_a_change_is_a_400_that_names_it_and_nothing_changes(
    aio: RunningGateway, body: dict[str, Any], param: str, code: str
) -> None:
    before = (await aio.http.get(KNOBS)).json()
    answer = await aio.http.patch(KNOBS, json={"max_waiting": 77, **body})
    assert answer.status_code == 400, answer.text
    error = answer.json()["error"]
    assert (error["param"], error["code"], error["type"]) == (param, code, "invalid_request_error")
    assert (await aio.http.get(KNOBS)).json() == before


async def test_a_value_out_of_range_says_what_is_allowed_and_the_refusal_is_written_down(aio: RunningGateway) -> None:
    answer = await aio.http.patch(KNOBS, json={"max_num_batched_tokens": 10**6, "reason": "faster!"})
    said = answer.json()["error"]["message"]
    assert said == "max_num_batched_tokens is 1000000; allowed: a whole number from 1 to 65,536."
    (refused,) = await history(aio, knob="max_num_batched_tokens")
    assert (refused["new_value"], refused["old_value"], refused["reason"]) == (10**6, None, "faster!")
    assert refused["refused"] in said


async def test_history_comes_in_pages(aio: RunningGateway) -> None:
    for number in (11, 12, 13):
        await aio.http.patch(KNOBS, json={"max_waiting": number, "model": INT4})
    newest, second = await history(aio, knob="max_waiting", limit=2)
    (third,) = await history(aio, knob="max_waiting", limit=1, before=second["knob_change_id"])
    assert [c["new_value"] for c in (newest, second, third)] == [13, 12, 11]
    await aio.http.patch(KNOBS, json={"max_waiting": None})
    for wrong in ({"limit": 0}, {"limit": "x"}, {"before": "-1"}, {"before": "9" * 30}):
        answer = await aio.http.get("/v1/admin/knobs/changes", params=wrong)
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, next(iter(wrong)))


async def test_the_schema_documents_the_knobs_with_their_bounds(aio: RunningGateway) -> None:
    schema = (await aio.http.get("/docs/openapi.json")).json()
    body = schema["paths"]["/v1/admin/knobs/core"]["patch"]["requestBody"]["content"]["application/json"]["schema"]
    assert {"model", "core", "keep", "reason", *Knobs.__struct_fields__} == set(body["properties"])


# -- what a change does ----------------------------------------------------------------------------


async def test_switching_the_prefix_cache_alters_the_next_request(aio: RunningGateway) -> None:
    async def cached() -> tuple[int, str]:
        answer = await aio.openai.chat.completions.create(model="tier-1", messages=HELLO, max_tokens=4, temperature=0)
        assert answer.usage is not None
        assert answer.usage.prompt_tokens_details is not None
        return answer.usage.prompt_tokens_details.cached_tokens or 0, answer.choices[0].message.content or ""

    cold, text_cold = await cached()
    warm, text_warm = await cached()
    await aio.http.patch(KNOBS, json={"prefix_caching": False, "model": INT4})
    off, text_off = await cached()
    await aio.http.patch(KNOBS, json={"prefix_caching": None})
    assert (cold, off) == (0, 0)
    assert warm > 0
    assert text_cold == text_warm == text_off


async def test_the_dtype_of_the_kv_cache_changes_while_answers_stream(aio: RunningGateway) -> None:
    has_text = asyncio.Event()

    async def stream(number: int) -> str:
        messages = [{"role": "user", "content": f"Count from {number}."}]
        chunks = await aio.openai.chat.completions.create(
            model="tier-1",
            messages=messages,  # type: ignore[arg-type]
            max_tokens=400,
            temperature=0,
            stream=True,
        )
        text = ""
        async for chunk in chunks:
            text += chunk.choices[0].delta.content or "" if chunk.choices else ""
            if text:
                has_text.set()
        return text

    whole = [await stream(number) for number in range(2)]
    has_text.clear()
    streams = [asyncio.create_task(stream(number)) for number in range(2)]
    await has_text.wait()
    answer = await aio.http.patch(KNOBS, json={"kv_dtype": "bfloat16", "model": INT4})
    assert answer.status_code == 200, answer.text
    shown = (await aio.http.get("/v1/admin/stats")).json()["models"]
    assert {model["name"]: model["kv_dtype"] for model in shown} == {INT4: "bfloat16", BF16: "float32"}
    assert await asyncio.gather(*streams) == whole
    refused = await aio.http.patch(KNOBS, json={"kv_dtype": "fp8"})
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "kv_dtype")
    assert "can have float32, bfloat16" in refused.json()["error"]["message"]
    await aio.http.patch(KNOBS, json={"kv_dtype": None})
    assert await stream(1) == whole[1]


async def test_a_kept_change_outlasts_the_process_and_another_does_not(settings: Settings) -> None:
    async with running_gateway(settings, core=laptop_hash_core(settings)) as first:
        await first.http.patch(KNOBS, json={"max_num_seqs": 9, "keep": True, "model": BF16})
        await first.http.patch(KNOBS, json={"max_waiting": 9})
    async with running_gateway(settings, core=laptop_hash_core(settings)) as again:
        assert await values(again, "max_num_seqs") == {INT4: 64, BF16: 9}
        assert await values(again, "max_waiting") == {INT4: 1000, BF16: 1000}
        changes = await history(again)
        assert [(c["knob"], c["model"], c["kept"]) for c in changes if c["kept"]] == [("max_num_seqs", BF16, True)]


async def test_without_a_core_there_are_no_knobs(settings: Settings) -> None:
    async with running_gateway(settings) as remote_only:
        answer = await remote_only.http.patch(KNOBS, json={"max_num_seqs": 9})
        assert (answer.status_code, answer.json()["error"]["code"]) == (503, "no_core")


async def test_a_core_that_is_gone_is_a_503(settings: Settings) -> None:
    core = laptop_hash_core(settings)
    async with running_gateway(settings, core=core) as gateway:
        await core.close()
        answer = await gateway.http.get(KNOBS)
        assert (answer.status_code, answer.json()["error"]["code"]) == (503, "core_unavailable")


async def test_a_change_made_while_the_database_is_down_applies_and_is_recorded_later(settings: Settings) -> None:
    core = laptop_hash_core(settings)
    await core.start()
    database = open_database(settings.database)
    knobs = CoreKnobs({"cpu": core}, database)
    away = await knobs.change(KnobOrder(changes={"max_waiting": 3}, actor="ann", model=INT4))
    assert away.recorded is False
    assert away.models[INT4].max_waiting == 3
    await migrate(settings.database)
    (change,) = await knobs.history(10, None, None)
    assert (change.actor, change.old_value, change.new_value) == ("ann", 1000, 3)
    assert len(await knobs.history(10, None, None)) == 1
    await database.dispose()
    await core.close()


# -- who may ---------------------------------------------------------------------------------------


class TestAdmins:
    """Who may see and change knobs."""

    async def test_with_admin_keys_only_they_open_administration_and_their_owner_is_written_down(
        self, settings: Settings
    ) -> None:
        (admin, admin_hash), (user, user_hash) = new_key(), new_key()
        guarded = Settings(
            data_dir=settings.data_dir, monitor=False, admin_keys=f"root={admin_hash}", api_keys=f"ann={user_hash}"
        )
        async with running_gateway(guarded, core=laptop_hash_core(guarded)) as gateway:
            for headers in ({}, {"authorization": f"Bearer {user}"}):
                refused = await gateway.http.patch(KNOBS, json={"max_waiting": 3}, headers=headers)
                assert (refused.status_code, refused.json()["error"]["code"]) == (401, "invalid_api_key")
            gateway.http.headers["authorization"] = f"Bearer {admin}"
            assert (await gateway.http.patch(KNOBS, json={"max_waiting": 3})).status_code == 200
            assert {change["actor"] for change in await history(gateway)} == {"root"}
            body = {"model": "tier-1", "messages": HELLO}
            assert (await gateway.http.post("/v1/chat/completions", json=body)).status_code == 401

    async def test_every_admin_endpoint_is_closed_to_callers_of_the_same_machine_without_an_admin_key(
        self, aio: RunningGateway
    ) -> None:
        paths = (await aio.http.get("/docs/openapi.json")).json()["paths"]
        # Whatever stands for a parameter, a number is fine for it.
        admin = [
            (verb, re.sub(r"{\w+}", "1", path)) for path, verbs in paths.items() if "/admin" in path for verb in verbs
        ]
        assert len(admin) >= 3
        async with httpx.AsyncClient(base_url=aio.url) as caller:
            answers = [await caller.request(verb.upper(), path) for verb, path in admin]
        assert {answer.status_code for answer in answers} == {401}
        assert "aio keys create NAME --scope admin" in answers[0].json()["error"]["message"]


# -- the command -----------------------------------------------------------------------------------


class TestCommand:
    """`aio knobs` against a running server."""

    async def run(self, aio: RunningGateway, *arguments: str) -> Result:
        words = ["knobs", *arguments, "--url", aio.url, "--key", ADMIN_KEY]
        return await asyncio.to_thread(CliRunner().invoke, main, words)

    async def test_show_lists_every_knob_with_its_values(self, aio: RunningGateway) -> None:
        shown = await self.run(aio, "show")
        assert shown.exit_code == 0, shown.output
        assert shown.output.splitlines()[0].split()[:3] == ["knob", INT4, BF16]
        assert all(name in shown.output for name in Knobs.__struct_fields__)
        as_json = await self.run(aio, "show", "--json")
        assert json.loads(as_json.output)["models"][INT4]["prefix_caching"] is True

    async def test_set_changes_and_history_tells(self, aio: RunningGateway) -> None:
        changed = await self.run(aio, "set", "prefix_caching=false", "prefill_chunk=128", "--reason", "ablation")
        assert changed.exit_code == 0, changed.output
        assert f"{INT4}: prefix_caching true -> false" in changed.output
        assert f"{BF16}: prefill_chunk 256 -> 128" in changed.output
        undone = await self.run(aio, "set", "prefix_caching=null", "prefill_chunk=null", "--json")
        assert len(json.loads(undone.output)["changed"]) == 4
        shown = await self.run(aio, "history", "--knob", "prefill_chunk", "--limit", "4")
        rows = shown.output.splitlines()
        assert rows[0].split() == ["when", "who", "model", "knob", "from", "to", "why"]
        assert rows[-1].endswith("ablation")
        assert json.loads((await self.run(aio, "history", "--limit", "1", "--json")).output)["changes"]

    async def test_a_refusal_shows_the_servers_message(self, aio: RunningGateway) -> None:
        refused = await self.run(aio, "set", "max_num_seqs=lots")
        assert refused.exit_code == 1
        assert 'max_num_seqs is "lots"; allowed: a whole number from 1 to 4,096' in refused.output
        assert "REFUSED: max_num_seqs" in (await self.run(aio, "history")).output

    async def test_a_missing_key_error_says_where_it_goes_and_how_to_make_one(self, aio: RunningGateway) -> None:
        for words in (["knobs", "show"], ["adapters", "list"]):
            refused = await asyncio.to_thread(CliRunner().invoke, main, [*words, "--url", aio.url])
            assert refused.exit_code == 1
            assert "--key or in AIO_ADMIN_KEY" in refused.output
            assert "aio keys create NAME --scope admin" in refused.output

    async def test_mistakes_are_explained(self, aio: RunningGateway) -> None:
        assert (await self.run(aio, "set", "max_num_seqs")).exit_code == 2
        for url, said in (("http://127.0.0.1:9", "Is `aio serve` running"), (f"{aio.url}/docs", "404")):
            wrong = await asyncio.to_thread(CliRunner().invoke, main, ["knobs", "show", "--url", url])
            assert wrong.exit_code == 1
            assert url in wrong.output
            assert said in wrong.output


async def test_refused_changes_of_any_name_fit_the_store(tmp_path: Path) -> None:
    settings = Settings(data_dir=str(tmp_path))
    await migrate(settings.database)
    core, database = laptop_hash_core(settings), open_database(settings.database)
    await core.start()
    with pytest.raises(Exception, match="is no knob"):
        await CoreKnobs({"cpu": core}, database).change(KnobOrder(changes={"x" * 300: 1}, actor="ann"))
    async with database.connect() as connection:
        (name,) = (await connection.execute(text("SELECT knob FROM knob_changes"))).one()
    assert name == "x" * 64
    await database.dispose()
    await core.close()
