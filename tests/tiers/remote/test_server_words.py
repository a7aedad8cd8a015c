"""What a server says that becomes a header, a label or a line of a log is checked where it is read."""

import json
from typing import Any

import pytest

from tests.support.upstream import Call, LoopbackServer
from tests.tiers.tier_world import chat, collect, remote_spec
from tiers.dialects.server_models import ServerModel, parse_models
from tiers.errors import Redaction, TierError, TierRequestError, TierUnavailableError
from tiers.remote.endpoint import endpoint_of
from tiers.remote.remote_tier import RemoteTier
from tiers.remote.server_state import sum_of_samples
from tiers.server_words import is_name, one_line

HOSTILE = [
    "a\r\nx-injected: 1", "a\nb", "a\x00b", "a\x1b[31m", "a\x7f", "", " a", "a ", "a\tb", "m" * 60_000, "m" * 257,
    "modèle", "a\u2028b", "\ud800", "a  b",
]  # fmt: skip


@pytest.mark.parametrize("name", HOSTILE, ids=lambda name: repr(name)[:20])
def test_a_name_that_cannot_be_a_header_names_no_model(name: str) -> None:
    assert not is_name(name)
    body = json.dumps({"data": [{"id": name}, {"id": "good", "max_model_len": 10**30}]}).encode()
    assert parse_models(200, body) in ([ServerModel("good")], None)


@pytest.mark.parametrize("name", ["llama3.2:3b", "meta-llama/Llama-3.1-8B", "C:\\models\\My Model.gguf", "m" * 256])
def test_names_as_servers_have_them_are_taken(name: str) -> None:
    assert is_name(name)


async def test_a_tier_of_a_server_with_a_hostile_name_keeps_its_own() -> None:
    async def listed(call: Call) -> None:
        await call.reply(200, {"data": [{"id": "a\r\nx-injected: 1"}]})

    async def say(call: Call) -> None:
        await call.say("Hello")

    async with LoopbackServer(say) as server:
        server.looked_at = listed
        spec = remote_spec(server.base_url, model="")
        tier = RemoteTier(spec)
        await tier.start()
        (answer,), _ = await collect(tier, chat())
        await tier.close()
    assert (tier.model, answer.text) == (spec.name, "Hello")


@pytest.mark.parametrize(
    "value",
    ["1e308", "-1", "1e16", "1e400", "NaN", "+Inf", "-Inf", "9" * 4000, "1e", "--1", "1e-400 9", "0x10"],
)
def test_samples_that_are_no_counts_are_no_report(value: str) -> None:
    page = f"vllm:num_requests_running 1\nvllm:num_requests_waiting {value}\n".encode()
    total = sum_of_samples(page, ["vllm:num_requests_waiting"])
    assert total in (None, 0)
    queue = endpoint_of(remote_spec("http://127.0.0.1:1/v1", kind="vllm").remote).queue  # type: ignore[arg-type]
    assert queue is not None
    report = queue.read(page)
    assert report is None or report.waiting == 0


def test_more_requests_than_any_server_holds_are_no_report() -> None:
    page = b"tgi_batch_current_size 1\ntgi_queue_size 1000001\n"
    queue = endpoint_of(remote_spec("http://127.0.0.1:1/v1", kind="tgi").remote).queue  # type: ignore[arg-type]
    assert queue is not None
    assert queue.read(page) is None


async def test_the_watch_of_a_queue_outlives_every_page() -> None:
    """The load is known again once the server is sensible again."""
    pages = iter(["1e308", "NaN", "1e400", "-5", "7"])

    async def look(call: Call) -> None:
        value = next(pages, "7") if call.path.endswith("metrics") else ""
        await call.begin(200, "text/plain")
        await call.send(f"vllm:num_requests_running 0\nvllm:num_requests_waiting {value}\n".encode())

    async with LoopbackServer(look) as server:
        server.looked_at = look
        tier = RemoteTier(remote_spec(server.base_url, kind="vllm"))
        told = [await tier.look_at_queue() for _ in range(5)]
        waiting = tier.load().waiting
        await tier.close()
    assert told == [None, None, None, None, 7]
    assert waiting == 7


@pytest.mark.parametrize("status", [400, 404, 500])
async def test_an_error_of_a_server_is_one_short_line(status: int) -> None:
    error: dict[str, Any] = {"message": "line\r\n2026-11-23 ERROR forged\x1b[31m" + "x" * 50_000, "param": "p\n" * 999}
    error["code"] = "c\x00" * 999

    async def refuse(call: Call) -> None:
        await call.reply(status, {"error": error})

    async with LoopbackServer(refuse) as server:
        tier = RemoteTier(remote_spec(server.base_url))
        with pytest.raises((TierRequestError, TierUnavailableError)) as caught:
            await collect(tier, chat())
        await tier.close()
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 2000
    if isinstance(caught.value, TierRequestError):
        assert all(
            text.isprintable() and len(text) < 200 for text in (caught.value.param or "", caught.value.code or "")
        )


def test_a_text_is_cut_after_its_first_thousand_characters() -> None:
    assert one_line("a\nb\x00") == "a b\ufffd"
    assert len(one_line("x" * 5000)) == 1001


KEY = "sk-upstream-4f9c7be12d08"


@pytest.mark.parametrize("name", ["message", "type", "param", "code"])
@pytest.mark.parametrize("said", [KEY, f"Bearer {KEY}", f"{'x' * 990}{KEY}", "{url}/chat failed", "host {host}"])
@pytest.mark.parametrize(("status", "streamed"), [(400, False), (401, False), (422, False), (200, True)])
async def test_no_field_of_an_error_shows_what_the_server_repeats(
    monkeypatch: pytest.MonkeyPatch, name: str, said: str, status: int, streamed: bool
) -> None:
    monkeypatch.setenv("ECHOED_KEY", KEY)

    async def refuse(call: Call) -> None:
        host = call.headers["host"]
        error = {"message": "no", "type": "t", "code": "c"} | {name: said.format(url=f"http://{host}/v1", host=host)}
        if not streamed:
            await call.reply(status, {"error": error})
            return
        await call.begin()
        await call.event({"error": error})

    async with LoopbackServer(refuse) as server:
        url = server.base_url
        tier = RemoteTier(remote_spec(url, api_key_env="ECHOED_KEY"))
        with pytest.raises(TierError) as caught:
            await collect(tier, chat())
        await tier.close()
    error = caught.value
    shown = f"{error} {getattr(error, 'param', '')} {getattr(error, 'code', '')}"
    assert KEY[:10] not in shown
    assert url.split("/")[2] not in shown
    assert url in error.for_operators


async def test_a_server_that_is_away_is_named_for_operators_alone() -> None:
    tier = RemoteTier(remote_spec("http://127.0.0.1:9/v1"))
    with pytest.raises(TierUnavailableError) as caught:
        await collect(tier, chat())
    await tier.close()
    assert "127.0.0.1" not in str(caught.value)
    assert "ConnectError" in str(caught.value)
    assert "[http://127.0.0.1:9/v1: " in caught.value.for_operators


@pytest.mark.parametrize(
    ("base_url", "said", "shown"),
    [
        (
            "https://api.example/v1",
            "see https://docs.example and api.example.",
            "see https://docs.example and [server].",
        ),
        ("http://model:8000/v1", "no model; POST http://model:8000/v1/x", "no model; POST [server]/x"),
        ("http://10.0.0.7:80/v1", "Pool(host='10.0.0.7', port=80) 10.0.0.77", "Pool(host='[server]) 10.0.0.77"),
        ("http://[fd00::7]/v1", "http://[fd00::7]/v1 refused", "[server] refused"),
        ("http://localhost:80/v1", "127.0.0.1:80 and 127.0.0.1:8080", "[server] and 127.0.0.1:8080"),
        (
            "http://localhost:80/v1",
            "Pool(host='127.0.0.1', port=80), 80 and 4096, 80",
            "Pool(host='[server]), 80 and 4096, 80",
        ),
        ("https://gateway.example/team/7/v1", "/team/7/v1/chat is unknown", "[server]/chat is unknown"),
    ],
)
def test_the_address_of_a_server_is_found_in_its_words(base_url: str, said: str, shown: str) -> None:
    assert Redaction(base_url)(said) == shown


def test_a_key_is_found_in_other_forms_and_where_it_is_cut_off() -> None:
    redacted = Redaction("http://server.example")
    redacted.add("sk-a/b+c=0123456789")
    assert redacted("sk-a%2Fb%2Bc%3D0123456789 c2stYS9iK2M9MDEyMzQ1Njc4OQ==") == "[key] [key]=="
    assert redacted("the key sk-a/b+c=0") == "the key [key]"
    assert redacted("the key sk-") == "the key sk-"
