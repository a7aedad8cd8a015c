"""Whether a prompt fits is decided by its bytes if they suffice, and else by counting once on a thread."""

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gateway.base.settings import Settings
from inference_core.tokenization.tokenizer import Tokenizer
from tests.support.app import RunningGateway, running_gateway
from tests.support.upstream import Upstream, write_remote_catalog
from tiers.local.text_threads import TextThreads

pytestmark = pytest.mark.asyncio(loop_scope="module")
# More bytes than the context has tokens, and fewer tokens.
IN_DOUBT = "word " * 5000
TOO_LONG = "Why is the sky blue? " * 30_000


@pytest.fixture
def encoding(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Of each prompt that is encoded, whether it is on the event loop's thread."""
    seen: list[bool] = []
    original, loop = Tokenizer.encode_pieces, threading.get_ident()

    def noted(self: Tokenizer, *given: Any, **named: Any) -> Any:
        seen.append(threading.get_ident() == loop)
        return original(self, *given, **named)

    monkeypatch.setattr(Tokenizer, "encode_pieces", noted)
    return seen


async def asked(aio: RunningGateway, text: str, model: str = "auto", **fields: Any) -> Any:
    body = {"model": model, "messages": [{"role": "user", "content": text}], "max_tokens": 8} | fields
    return await aio.http.post("/v1/chat/completions", json=body, headers={"x-aio-cache": "off"})


@pytest.mark.parametrize(("model", "readings"), [("auto", 2), ("tier-1", 1), ("tier-4", 1)])
async def test_tiers_of_one_tokeniser_count_a_prompt_once_and_not_on_the_event_loop(
    aio: RunningGateway, encoding: list[bool], model: str, readings: int
) -> None:
    answer = await asked(aio, IN_DOUBT, model)
    assert answer.status_code == 200, answer.text
    # The chain of thought of tier 4 reads it with an instruction.
    assert encoding == [False] * readings


async def test_a_short_prompt_needs_no_thread(
    aio: RunningGateway, encoding: list[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def never(*_: Any) -> None:
        raise AssertionError("it went to a thread")

    monkeypatch.setattr(TextThreads, "run", never)
    assert (await asked(aio, "Hello")).status_code == 200
    assert encoding == [True]


async def test_a_prompt_for_servers_elsewhere_is_estimated_and_needs_no_thread(
    tmp_path: Path, upstream: Upstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    callers: list[str] = []

    async def run(_: TextThreads, caller: str, work: Callable[[], Any]) -> Any:
        callers.append(caller)
        return work()

    monkeypatch.setattr(TextThreads, "run", run)
    catalog, models = write_remote_catalog(tmp_path / "catalog.toml", upstream.base_url), ("auto", "tier-1")
    async with running_gateway(Settings(data_dir=str(tmp_path), catalog=str(catalog)), scripted=False) as remote:
        # More bytes than the context of 4,096 tokens, and fewer tokens by our estimate; then more of these, too.
        answers = [await asked(remote, "word " * words, model) for words in (2000, 4000) for model in models]
    assert [answer.status_code for answer in answers] == [200, 200, 400, 400]
    assert {answer.json()["error"]["code"] for answer in answers[2:]} == {"context_length_exceeded"}
    assert callers == []


@pytest.mark.parametrize("model", ["auto", "tier-1", "tier-4"])
async def test_a_prompt_of_too_many_bytes_is_refused_without_being_encoded(
    aio: RunningGateway, encoding: list[bool], model: str
) -> None:
    answer = await asked(aio, TOO_LONG, model)
    error = answer.json()["error"]
    assert (answer.status_code, error["param"], error["code"]) == (400, "messages", "context_length_exceeded")
    assert "prompt tokens and 8 answer tokens exceed the context of 8192 tokens" in error["message"]
    assert encoding == []


async def test_what_the_bytes_do_not_tell_is_counted(aio: RunningGateway, encoding: list[bool]) -> None:
    answer = await asked(aio, "word " * 7800, "tier-2", max_tokens=4000)
    error = answer.json()["error"]
    assert (answer.status_code, error["code"]) == (400, "context_length_exceeded")
    # The template's tokens in addition to those of the words.
    assert 7800 < int(error["message"].split("at least ")[1].split()[0]) < 7900
    assert encoding == [False]


async def test_an_input_of_too_many_bytes_is_not_encoded_to_be_embedded(
    aio: RunningGateway, encoding: list[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    # The core of this gateway has no file to read a tokeniser from.
    monkeypatch.setattr(
        aio.serving.embedders["smollm2-embed"], "_tokenizer", aio.serving.routing.served.tier(1).tokenizer
    )
    answer = await aio.http.post("/v1/embeddings", json={"model": "smollm2-embed", "input": ["a", TOO_LONG]})
    error = answer.json()["error"]
    assert (answer.status_code, error["param"], error["code"]) == (400, "input[1]", "context_length_exceeded")
    assert encoding == [False]  # the other one


async def test_token_ids_are_counted_at_sight(aio: RunningGateway, encoding: list[bool]) -> None:
    body = {"model": "tier-1", "prompt": [7] * 9000, "max_tokens": 1}
    answer = await aio.http.post("/v1/completions", json=body)
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "context_length_exceeded")
    assert encoding == []
