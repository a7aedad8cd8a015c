"""Guardrails through a running gateway: what they block, replace and let pass, and what becomes of their failures."""

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from tests.gateway.inference.screening import word_guardrails
from tests.polling import eventually
from tests.support.app import RunningGateway, gateway_of
from tests.support.upstream import Call, LoopbackServer, remote_catalog
from tiers.conversation import ToolCallDelta
from tiers.errors import CatalogError
from tiers.tier import GenerationRequest

HERE = "tests.gateway.inference.screening.word_guardrails"
CHAT = "/v1/chat/completions"
UNREADABLE = {
    "nested": b'{"more":' + b"[" * 60_000,
    "not UTF-8": b'{"action": "pass", "reason": "\xff"}',
    "no verdict": b'{"error": "overloaded"}',
    "nothing": b"{}",
}
WORDS = f'[[guardrails]]\nname = "words"\npython = "{HERE}:Words"\n'


@pytest.fixture(autouse=True)
def forgotten() -> Iterator[None]:
    word_guardrails.ASKED.clear()
    word_guardrails.HELD.clear()
    yield
    word_guardrails.HELD.set()


@asynccontextmanager
async def guarded(folder: Path, tables: str) -> AsyncIterator[RunningGateway]:
    """A gateway with these guardrails before scripted tiers, of which the first answers; all are labelled local."""
    catalog = remote_catalog("http://127.0.0.1:9/v1").replace("number =", "local = true\nnumber =")
    catalog = catalog.replace('name = "one-upstream"', f'name = "one-upstream"\n{tables}')
    async with gateway_of(folder, catalog, scripted=True) as aio:
        aio.classifier.p_ok = (0.99, 0.99, 0.99, 1.0)
        for tier in aio.tiers:
            tier.is_local = True
        yield aio


def edit(file: Path, old: str, new: str) -> None:
    file.write_text(file.read_text().replace(old, new))


async def reloaded(aio: RunningGateway, old: str, new: str) -> None:
    edit(Path(aio.serving.settings.catalog), old, new)
    await aio.operations.reload.reload("a test", "")


async def chat(aio: RunningGateway, said: str = "Hello", **body: Any) -> httpx.Response:
    asked = {"model": "auto", "messages": [{"role": "user", "content": said}], "temperature": 0} | body
    return await aio.http.post(CHAT, json=asked)


def seen(aio: RunningGateway) -> list[GenerationRequest]:
    return [request for tier in aio.tiers for request in tier.requests]


@pytest.mark.parametrize("name", ["Words", "Later"])
async def test_a_request_is_blocked_before_any_tier_sees_it(tmp_path: Path, name: str) -> None:
    async with guarded(tmp_path, WORDS.replace(":Words", f":{name}")) as aio:
        answer = await chat(aio, "something forbidden")
        error = answer.json()["error"]
        assert (answer.status_code, error["type"], error["code"]) == (400, "invalid_request_error", "content_filter")
        assert (error["param"], "'words' blocked this request: it says forbidden" in error["message"]) == (
            "messages",
            True,
        )
        assert seen(aio) == []
        metrics = (await aio.http.get("/metrics")).text
        assert 'aio_guardrail_verdicts_total{guardrail="words",stage="request",verdict="block"} 1.0' in metrics


async def test_a_blocked_message_has_the_error_of_its_api(tmp_path: Path) -> None:
    async with guarded(tmp_path, WORDS) as aio:
        body = {"model": "auto", "max_tokens": 8, "messages": [{"role": "user", "content": "forbidden"}]}
        refused = await aio.http.post("/v1/messages", json=body)
        assert (refused.status_code, refused.json()["error"]["type"]) == (400, "invalid_request_error")
        with pytest.raises(openai.BadRequestError) as caught:
            await aio.openai.responses.create(model="auto", input="forbidden")
        assert caught.value.code == "content_filter"


async def test_texts_of_a_request_are_replaced_before_any_tier_sees_them(tmp_path: Path) -> None:
    """Of every role, with calls and parts; and the record has the new ones."""
    async with guarded(tmp_path, WORDS) as aio:
        call = {"id": "a", "type": "function", "function": {"name": "f", "arguments": '{"x": "secret"}'}}
        messages = [
            {"role": "system", "content": "a secret rule"},
            {"role": "user", "content": [{"type": "text", "text": "my secret"}]},
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "a", "content": "secret result"},
        ]
        answer = await chat(aio, messages=messages)
        (request,) = seen(aio)
        assert "secret" not in str(request.messages)
        assert [message.text for message in request.messages or []] == ["a *** rule", "my ***", "", "*** result"]
        assert (request.messages or [])[2].calls[0].arguments == '{"x": "***"}'
        record = await eventually(lambda: aio.serving.records.find(answer.json()["id"]))
        assert "secret" not in json.dumps(record.messages)
        assert word_guardrails.ASKED[0].texts[0].role == "system"


async def test_the_form_of_the_callers_api_is_replaced_too(tmp_path: Path) -> None:
    """A document's text is in that form alone: no tier gets it as it was."""
    async with guarded(tmp_path, WORDS) as aio:
        source = {"type": "text", "media_type": "text/plain", "data": "the secret page"}
        content = [{"type": "text", "text": "Sum it up"}, {"type": "document", "source": source}]
        body = {"model": "auto", "max_tokens": 8, "messages": [{"role": "user", "content": content}]}
        await aio.http.post("/v1/messages", json=body)
        assert "secret" not in str([request.messages for request in seen(aio)])


async def test_prompts_are_replaced_and_token_ids_refused(tmp_path: Path) -> None:
    async with guarded(tmp_path, WORDS) as aio:
        await aio.http.post("/v1/completions", json={"model": "auto", "prompt": ["one", "a secret"]})
        assert [request.prompt for request in seen(aio)] == ["one", "a ***"]
        ids = await aio.http.post("/v1/completions", json={"model": "tier-1", "prompt": [1, 2]})
        assert (ids.status_code, ids.json()["error"]["code"], ids.json()["error"]["param"]) == (
            400,
            "content_filter",
            "prompt",
        )


async def test_an_answer_is_replaced_and_is_no_evidence_about_its_tier(tmp_path: Path) -> None:
    async with guarded(tmp_path, WORDS) as aio:
        aio.tier(1).words = ("the", " sec", "ret", " plan")
        answer = (await chat(aio, logprobs=True)).json()
        choice = answer["choices"][0]
        assert (choice["message"]["content"], choice["finish_reason"]) == ("the *** plan", "stop")
        assert not (choice["logprobs"] or {}).get("content")
        assert answer["usage"]["completion_tokens"] == 4
        record = await eventually(lambda: aio.serving.records.find(answer["id"]))
        assert (record.answer, record.attempts[-1].guarded) == ("the *** plan", "replaced by words")
        from quality.verification.sampling import refusal

        assert refusal(record) == "guarded"


async def test_a_blocked_answer_is_empty_and_says_that_it_was_filtered(tmp_path: Path) -> None:
    async with guarded(tmp_path, WORDS) as aio:
        aio.tier(1).words = ("a", " forbidden", " answer")
        answer = (await chat(aio)).json()
        choice = answer["choices"][0]
        assert (choice["message"]["content"], choice["finish_reason"]) == ("", "content_filter")
        record = await eventually(lambda: aio.serving.records.find(answer["id"]))
        assert (record.answer, record.finish_reason, record.status) == ("", "content_filter", "ok")
        body = {"model": "auto", "max_tokens": 8, "messages": [{"role": "user", "content": "Hello"}]}
        assert (await aio.http.post("/v1/messages", json=body)).json()["stop_reason"] == "refusal"
        response = await aio.openai.responses.create(model="auto", input="Hello")
        assert response.incomplete_details is not None
        assert (response.status, response.incomplete_details.reason) == ("incomplete", "content_filter")


async def test_only_the_choices_that_change_lose_their_log_probabilities(tmp_path: Path) -> None:
    async with guarded(tmp_path, WORDS) as aio:
        aio.tier(1).words, aio.tier(1).likelihoods = ("a", " word"), (-0.1, -0.2)
        aio.operations.cache.store.clear()  # type: ignore[attr-defined]
        word_guardrails.ASKED.clear()
        answer = (await chat(aio, n=2, logprobs=True, seed=1)).json()
        assert [choice["message"]["content"] for choice in answer["choices"]] == ["a word#0", "a word#1"]
        assert all(choice["logprobs"]["content"] for choice in answer["choices"])


async def test_a_call_of_a_tool_is_judged_and_replaced(tmp_path: Path) -> None:
    async with guarded(tmp_path, WORDS) as aio:
        aio.tier(1).words = ()
        aio.tier(1).calls = (
            ToolCallDelta(index=0, id="a", name="f", arguments='{"x": "se'),
            ToolCallDelta(index=0, arguments='cret"}'),
        )
        tool = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
        choice = (await chat(aio, tools=[tool])).json()["choices"][0]
        assert choice["message"]["tool_calls"][0]["function"] == {"name": "f", "arguments": '{"x": "***"}'}
        assert choice["finish_reason"] == "tool_calls"


@pytest.mark.parametrize(
    ("words", "text", "reason"),
    [
        (("a", " sec", "ret"), "a ***", "stop"),
        (("a", " forbid", "den"), "", "content_filter"),
        (("all", " is", " well"), "all is well", "stop"),
    ],
)
async def test_nothing_of_a_stream_is_out_before_it_is_judged(
    tmp_path: Path, words: tuple[str, ...], text: str, reason: str
) -> None:
    async with guarded(tmp_path, WORDS) as aio:
        aio.tier(1).words, aio.tier(1).hold_at = words, 2
        waiting = asyncio.create_task(
            aio.openai.chat.completions.create(
                model="auto", messages=[{"role": "user", "content": "Hello"}], stream=True
            )
        )
        await aio.tier(1).holding.wait()
        assert not waiting.done()
        aio.tier(1).go.set()
        chunks = [chunk async for chunk in await waiting]
        said = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
        assert said == text
        assert [c.choices[0].finish_reason for c in chunks if c.choices and c.choices[0].finish_reason] == [reason]


async def test_a_client_that_leaves_frees_the_tier_of_an_answer_that_is_held(tmp_path: Path) -> None:
    async with guarded(tmp_path, WORDS) as aio:
        aio.tier(1).hold_at = 2
        asking = asyncio.create_task(chat(aio, stream=True))
        await aio.tier(1).holding.wait()
        asking.cancel()
        await aio.tier(1).ended.wait()
        assert aio.tier(1).closed_early == 1


async def test_a_tier_that_fails_in_the_middle_is_replaced_by_the_next(tmp_path: Path) -> None:
    """What the first one said is void, and is not judged."""
    async with guarded(tmp_path, WORDS) as aio:
        aio.tier(1).words, aio.tier(1).fail_at = ("forbidden", " words"), 1
        assert (await chat(aio)).json()["choices"][0]["message"]["content"] == "Hello there, how are you?"


async def test_an_answer_from_the_cache_is_judged_again(tmp_path: Path) -> None:
    async with guarded(tmp_path, WORDS) as aio:
        aio.tier(1).words = ("a", " secret")
        for use in ("miss", "hit"):
            answer = await chat(aio)
            assert answer.headers["x-aio-cache"] == use
            assert answer.json()["choices"][0]["message"]["content"] == "a ***"
        assert len(seen(aio)) == 1


@pytest.mark.parametrize("name", ["Failing", "Hanging", "Short", "NoVerdict"])
@pytest.mark.parametrize("stage", ["request", "answer"])
@pytest.mark.parametrize("fail", ["closed", "open"])
async def test_a_guardrail_without_a_verdict_fails_closed_unless_it_is_to_fail_open(
    tmp_path: Path, name: str, stage: str, fail: str, caplog: pytest.LogCaptureFixture
) -> None:
    table = f'[[guardrails]]\nname = "g"\npython = "{HERE}:{name}"\non = ["{stage}"]\ntimeout_seconds = 0.2\n'
    async with guarded(tmp_path, table + (f'fail = "{fail}"\n' if fail == "open" else "")) as aio:
        answer = await chat(aio, "a text of the caller")
        if fail == "open":
            assert answer.json()["choices"][0]["message"]["content"] == "Hello there, how are you?"
        else:
            error = answer.json()["error"]
            assert (answer.status_code, error["type"], error["code"]) == (503, "server_error", "guardrail_failed")
            assert bool(seen(aio)) == (stage == "answer")
        assert "a text of the caller" not in caplog.text
        assert f"guardrail g judged no {stage}" in caplog.text


async def test_a_server_judges_by_http(tmp_path: Path) -> None:
    async def judge(call: Call) -> None:
        texts = [one["text"] for one in call.body["texts"]]
        if "forbidden" in "".join(texts):
            await call.reply(200, {"action": "block", "reason": "it is forbidden"})
        elif "secret" in "".join(texts):
            await call.reply(200, {"action": "replace", "texts": [one.replace("secret", "***") for one in texts]})
        elif "odd" in "".join(texts):
            await call.reply(200, {"action": "perhaps"})
        elif "down" in "".join(texts):
            await call.reply(500, {"action": "pass"})
        elif "large" in "".join(texts):
            await call.reply(200, {"action": "pass", "reason": "x" * 200_000})
        elif (page := UNREADABLE.get("".join(texts))) is not None:
            await call.begin(200, "application/json")
            await call.send(page)
        else:
            await call.reply(200, {"action": "pass"})

    async with LoopbackServer(judge) as server:
        table = f'[[guardrails]]\nname = "remote"\nurl = "{server.base_url}/check"\n'
        async with guarded(tmp_path, table) as aio:
            assert (await chat(aio, "Hello")).status_code == 200
            body = server.calls[0].body
            assert (server.calls[0].path, body["stage"], body["model"]) == ("/v1/check", "request", "auto")
            assert body["texts"] == [{"role": "user", "text": "Hello"}]
            assert server.calls[1].body["stage"] == "answer"
            assert body["request_id"] == server.calls[1].body["request_id"]

            assert (await chat(aio, "forbidden")).json()["error"]["code"] == "content_filter"
            await chat(aio, "a secret")
            assert (seen(aio)[-1].messages or [])[0].text == "a ***"
            for said in ("odd", "down", "large", *UNREADABLE):
                assert (await chat(aio, said)).json()["error"]["code"] == "guardrail_failed"
            await server.stop()
            assert (await chat(aio, "Hello again")).json()["error"]["code"] == "guardrail_failed"


async def test_a_server_elsewhere_sees_no_private_request(tmp_path: Path) -> None:
    """Unless the catalogue says that it is in the network; the tiers in the catalogue are."""

    async def judge(call: Call) -> None:
        await call.reply(200, {"action": "pass"})

    async with LoopbackServer(judge) as server:
        table = f'[private]\n[[guardrails]]\nname = "remote"\nurl = "{server.base_url}"\n'
        async with guarded(tmp_path, table) as aio:
            refused = await chat(aio, "Write to ada@example.com")
            assert (refused.status_code, refused.json()["error"]["code"]) == (403, "no_guardrail_may_see")
            assert server.calls == []
            await reloaded(aio, 'name = "remote"', 'name = "remote"\nlocal = true')
            assert (await chat(aio, "Write to ada@example.com")).status_code == 200
            assert len(server.calls) == 2


async def test_guardrails_are_asked_in_their_order_each_with_what_the_last_left(tmp_path: Path) -> None:
    tables = "".join(
        WORDS.replace('"words"', f'"{name}"') + f'options = {{ mask = "{mask}", block = "{block}" }}\n'
        for name, mask, block in (("first", "ok", "none"), ("second", "no", "secret"))
    )
    async with guarded(tmp_path, tables) as aio:
        assert (await chat(aio, "a secret")).status_code == 200
        assert (seen(aio)[0].messages or [])[0].text == "a ok"


async def test_a_guardrail_that_cannot_be_made_stops_the_start_and_rejects_a_reload(tmp_path: Path) -> None:
    wrong = WORDS.replace(":Words", ":Missing")
    with pytest.raises(CatalogError, match=r"guardrails 'words'.python .*Missing"):
        async with guarded(tmp_path, wrong):
            pass
    async with guarded(tmp_path, WORDS) as aio:
        with pytest.raises(CatalogError, match="Missing"):
            await reloaded(aio, ":Words", ":Missing")
        assert (await chat(aio, "forbidden")).json()["error"]["code"] == "content_filter"
