"""Answers of servers elsewhere are judged by their text, and by log-probabilities where the kind of server has them."""

from pathlib import Path
from typing import Any

import msgspec
import pytest

from classifier.policy.agreement_counts import AgreementCounts, AgreementPlace
from gateway.base.settings import Settings
from gateway.inference.agreement import Agreements
from tests.gateway.inference.known_probes import known_probes
from tests.support.app import running_gateway
from tests.support.upstream import Call, LoopbackServer, write_remote_catalog
from tiers.catalog.load import load_catalog

PROMPT = {"model": "auto", "messages": [{"role": "user", "content": "Say hello."}]}


def answer(text: str, logprob: float | None = None) -> dict[str, Any]:
    choice: dict[str, Any] = {"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": "stop"}
    if logprob is not None:
        token = {"token": text, "logprob": logprob, "bytes": None, "top_logprobs": []}
        choice["logprobs"] = {"content": [token] * 3}
    return {"object": "chat.completion", "choices": [choice], "usage": {"prompt_tokens": 9, "completion_tokens": 3}}


@pytest.fixture(autouse=True)
def _counts_that_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    """The counts that a test adds are not replaced by those of the stored requests, of which there are none."""

    async def catch_up(*_: Any) -> None:
        return

    monkeypatch.setattr(Agreements, "catch_up", catch_up)


async def asked(settings: Settings, folder: Path, kind: str, answers: list[dict[str, Any]], **body: Any) -> Any:
    """The response to one request to a gateway before one server with four tiers, which gives `answers` one after
    another, and what the server was sent."""

    async def say(call: Call) -> None:
        if call.body.get("stream"):
            await call.say(answers[0]["choices"][0]["message"]["content"])
            return
        place = next(place for place, one in enumerate(server.calls) if one is call)
        await call.reply(200, answers[min(place, len(answers) - 1)])

    server = LoopbackServer(say)
    async with server:
        path = write_remote_catalog(folder / "catalog.toml", server.base_url)
        path.write_text(path.read_text().replace('model = "upstream"', f'model = "upstream"\nkind = "{kind}"'))
        serving = msgspec.structs.replace(settings, catalog=str(path), data_dir=str(folder / "data"))
        async with running_gateway(serving, scripted=False) as gateway:
            # A sure answer of tier 1 is better than what tier 2 is expected to give.
            gateway.classifier.p_ok = (0.999, 0.97, 0.97, 1.0)
            probes = gateway.serving.service.probes
            assert probes is not None
            probes.use(known_probes(load_catalog(str(path))))
            agreements = gateway.serving.service.agreements
            assert agreements is not None
            # Two samples of tier 1's numbers agreed, and none of them was worse.
            known = AgreementCounts(compared=2000.0, agreed=2000.0, verified=2000.0)
            agreements.table.add(AgreementPlace("", "", "", "number"), (1, 1), known)
            response = await gateway.http.post("/v1/chat/completions", json=PROMPT | body)
    return response, [call.body for call in server.calls]


@pytest.mark.parametrize("kind", ["openai", "vllm"])
async def test_a_refusal_goes_one_tier_up_and_a_server_without_logprobs_is_asked_for_none(
    settings: Settings, tmp_path: Path, kind: str
) -> None:
    texts = [answer("I'm sorry, but I cannot do that."), answer("Hello.")]
    response, sent = await asked(settings, tmp_path, kind, texts)
    assert response.json()["choices"][0]["message"]["content"] == "Hello."
    assert response.headers["x-aio-escalated-from"] == "1"
    assert [body.get("logprobs") for body in sent] == ([None, None] if kind == "openai" else [True, None])


@pytest.mark.parametrize(("logprob", "escalated"), [(-0.05, False), (-4.0, True)])
async def test_logprobs_of_a_server_are_judged_and_not_shown_to_who_did_not_ask(
    settings: Settings, tmp_path: Path, logprob: float, escalated: bool
) -> None:
    response, sent = await asked(settings, tmp_path, "vllm", [answer("Hi.", logprob), answer("Hello.")])
    assert ("x-aio-escalated-from" in response.headers) is escalated
    assert response.json()["choices"][0].get("logprobs") is None
    assert len(sent) == 1 + escalated


async def test_logprobs_that_the_caller_wants_are_judged_too_and_shown(settings: Settings, tmp_path: Path) -> None:
    response, sent = await asked(settings, tmp_path, "vllm", [answer("Hi.", -0.05)], logprobs=True, top_logprobs=0)
    assert len(response.json()["choices"][0]["logprobs"]["content"]) == 3
    assert len(sent) == 1


async def test_a_stream_is_passed_on_and_asks_for_nothing(settings: Settings, tmp_path: Path) -> None:
    response, sent = await asked(settings, tmp_path, "vllm", [answer("I'm sorry.")], stream=True)
    assert "I'm sorry." in response.text
    assert "logprobs" not in sent[0]


@pytest.mark.parametrize(("second", "agrees"), [("So it is 36 legs.", True), ("It is 32.", False)])
async def test_a_second_sample_of_a_server_keeps_what_it_agrees_with_and_escalates_the_rest(
    settings: Settings, tmp_path: Path, second: str, agrees: bool
) -> None:
    half_sure = answer("There are 36.", -1.718)  # a P of 0.5, and tier 2 costs ten times as much as the sample
    question = [{"role": "user", "content": "How many legs do nine dogs have?"}]
    texts = [half_sure, answer(second), answer("Thirty-six.")]
    response, sent = await asked(settings, tmp_path, "vllm", texts, messages=question, temperature=0.0)
    kept = response.json()["choices"][0]["message"]["content"]
    assert kept == ("There are 36." if agrees else "Thirty-six.")
    assert response.headers.get("x-aio-escalated-from") == (None if agrees else "1")
    assert len(sent) == (2 if agrees else 3)
    assert [(body["temperature"], body["messages"]) for body in sent[:2]] == [(0.0, question), (0.8, question)]
