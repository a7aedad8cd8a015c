"""What a server says that becomes a header, a label or a line of a log is checked where it is read."""

import json
from typing import Any

import pytest

from tests.tiers.remote.loopback_server import Call, LoopbackServer
from tests.tiers.tier_world import chat, collect, remote_spec
from tiers.errors import TierRequestError, TierUnavailableError
from tiers.remote.remote_tier import RemoteTier
from tiers.remote.server_state import ServerModel, parse_models, sum_of_samples
from tiers.remote.wire import wire_of
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
    found = sum_of_samples(page, ["vllm:num_requests_waiting"])
    assert found in (None, 0)
    queue = wire_of(remote_spec("http://127.0.0.1:1/v1", kind="vllm").remote).queue  # type: ignore[arg-type]
    assert queue is not None
    report = queue.read(page)
    assert report is None or report.waiting == 0


def test_more_requests_than_any_server_holds_are_no_report() -> None:
    page = b"tgi_batch_current_size 1\ntgi_queue_size 1000001\n"
    queue = wire_of(remote_spec("http://127.0.0.1:1/v1", kind="tgi").remote).queue  # type: ignore[arg-type]
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
