"""Texts in traces: only where asked for, after the redaction, never without consent, within bounds, by both
conventions; at a receiver of OTLP over HTTP, and at one with Langfuse's path and sign-in."""

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from gateway.base.settings import Settings, SettingsError
from gateway.telemetry.span_export import configured_exporter
from gateway.telemetry.traces import CUT, MAX_MESSAGES, ContentAttributes
from tests.gateway.telemetry.otlp_collector import Collector, attribute, running_collector
from tests.quality.store.records import make_record
from tests.support.administrator import bearer
from tests.support.app import RunningGateway, running_gateway
from tiers.catalog.consent import Consent

SECRET = "canary-4711"
CHAT = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": f"My number is {SECRET}."},
]


def exporting(settings: Settings, collector: Collector, **fields: Any) -> Settings:
    fields = {"trace_exporter": "otlp", "otlp_endpoint": collector.url, "trace_content": "both"} | fields
    return msgspec.structs.replace(settings, **fields)


async def ask(gateway: RunningGateway, **headers: str) -> None:
    gateway.tier(1).words = ("It is ", f"{SECRET}.")
    answer = await gateway.ask(headers=headers, messages=CHAT)
    assert answer.status_code == 200, answer.text


def root(collector: Collector) -> Any:
    return next(span for span in collector.spans if span.name.startswith("chat "))


def everything(collector: Collector) -> str:
    return "".join(str(span) for span in collector.spans)


async def test_spans_have_the_texts_by_both_conventions(settings: Settings) -> None:
    with running_collector() as collector:
        async with running_gateway(exporting(settings, collector)) as gateway:
            await ask(gateway)
    span = root(collector)
    assert json.loads(attribute(span, "gen_ai.system_instructions")) == [{"type": "text", "content": "Be brief."}]
    assert json.loads(attribute(span, "gen_ai.input.messages")) == [
        {"role": "user", "parts": [{"type": "text", "content": CHAT[1]["content"]}]}
    ]
    assert json.loads(attribute(span, "gen_ai.output.messages")) == [
        {
            "role": "assistant",
            "parts": [{"type": "text", "content": f"It is {SECRET}."}],
            "finish_reason": "stop",
        }
    ]
    assert attribute(span, "openinference.span.kind") == "LLM"
    assert attribute(span, "llm.input_messages.0.message.role") == "system"
    assert attribute(span, "llm.input_messages.1.message.content") == CHAT[1]["content"]
    assert attribute(span, "llm.output_messages.0.message.content") == f"It is {SECRET}."
    assert attribute(span, "output.value") == f"It is {SECRET}."
    assert attribute(span, "llm.token_count.prompt") == attribute(span, "gen_ai.usage.input_tokens") > 0


@pytest.mark.parametrize(
    ("convention", "there", "absent"),
    [("gen_ai", "gen_ai.input.messages", "input.value"), ("openinference", "input.value", "gen_ai.input.messages")],
)
async def test_one_convention_leaves_out_the_other(
    settings: Settings, convention: str, there: str, absent: str
) -> None:
    with running_collector() as collector:
        async with running_gateway(exporting(settings, collector, trace_content=convention)) as gateway:
            await ask(gateway)
    assert SECRET in attribute(root(collector), there)
    assert attribute(root(collector), absent) is None


async def test_texts_are_redacted_before_they_leave(settings: Settings, tmp_path: Path) -> None:
    (tmp_path / "patterns").write_text(f"{SECRET}\n")
    with running_collector() as collector:
        redacting = exporting(settings, collector, redaction=str(tmp_path / "patterns"), drain_seconds=20)
        async with running_gateway(redacting) as gateway:
            await ask(gateway)
    assert SECRET not in everything(collector)
    assert attribute(root(collector), "output.value") == "It is [redacted]."


async def test_a_failed_redaction_leaves_the_span_without_texts(settings: Settings) -> None:
    with running_collector() as collector:
        redacting = exporting(settings, collector, redaction="builtins:int", drain_seconds=20)
        async with running_gateway(redacting) as gateway:
            await ask(gateway)
    assert SECRET not in everything(collector)
    assert attribute(root(collector), "gen_ai.input.messages") is None


async def test_what_a_key_or_a_request_does_not_let_be_stored_is_never_exported(settings: Settings) -> None:
    with running_collector() as collector:
        async with running_gateway(exporting(settings, collector)) as gateway:
            await ask(gateway, **{"x-aio-consent": "answer"})
            await ask(gateway, **bearer(await gateway.key("private", consent=False)))
    roots = [span for span in collector.spans if span.name.startswith("chat ")]
    assert len(roots) == 2
    assert SECRET not in everything(collector)
    assert [attribute(span, "openinference.span.kind") for span in roots] == ["LLM", "LLM"]


async def test_without_the_setting_no_text_leaves(settings: Settings) -> None:
    with running_collector() as collector:
        async with running_gateway(exporting(settings, collector, trace_content="none")) as gateway:
            await ask(gateway)
    assert root(collector)
    assert SECRET not in everything(collector)
    assert attribute(root(collector), "openinference.span.kind") is None


async def test_langfuse_gets_them_at_its_path_with_its_sign_in(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    with running_collector(basic="pk-lf-1:sk-lf-2") as collector:
        headers = f"Authorization={(collector.expected or '').replace(' ', '%20')},x-langfuse-ingestion-version=4"
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", headers)
        endpoint = f"{collector.url}/api/public/otel"
        async with running_gateway(exporting(settings, collector, otlp_endpoint=endpoint)) as gateway:
            await ask(gateway)
    assert collector.paths == {"/api/public/otel/v1/traces"}
    assert (collector.types, collector.versions, collector.refused) == ({"application/x-protobuf"}, {"4"}, 0)
    assert SECRET in attribute(root(collector), "input.value")


async def test_long_texts_are_cut_and_the_last_turns_kept(settings: Settings) -> None:
    with running_collector() as collector:
        async with running_gateway(exporting(settings, collector, trace_content_chars=64)) as gateway:
            messages = [
                {"role": "user", "content": "first"},
                {"role": "assistant", "content": "x" * 100},
                {"role": "user", "content": "last"},
            ]
            answer = await gateway.http.post("/v1/chat/completions", json={"model": "auto", "messages": messages})
            assert answer.status_code == 200
    span = root(collector)
    told = json.loads(attribute(span, "input.value"))
    assert [turn["role"] for turn in told] == ["assistant", "user"]
    assert told[1]["text"] == "last"
    assert told[0]["text"].endswith(CUT)
    assert sum(len(turn["text"]) for turn in told) == 64


def test_a_conversation_has_at_most_so_many_turns_in_a_span() -> None:
    long = msgspec.structs.replace(
        make_record(), messages=[{"role": "user", "content": str(n)} for n in range(MAX_MESSAGES + 5)]
    )
    told = json.loads(ContentAttributes("gen_ai", 10_000).of_record(long)["gen_ai.input.messages"])
    assert (len(told), told[0]["parts"][0]["content"]) == (MAX_MESSAGES, "5")


def test_reasoning_tools_and_raw_prompts_have_the_forms_of_the_convention() -> None:
    turns = [
        {"role": "prompt", "content": "raw"},
        {"role": "assistant", "content": 'look({"q": 1})'},
        {"role": "tool", "content": "42"},
    ]
    made = msgspec.structs.replace(make_record(), messages=turns, answer="It is 42.", reasoning="Hm.")
    told = ContentAttributes("gen_ai", 1000).of_record(made)
    asked = json.loads(told["gen_ai.input.messages"])
    assert [turn["role"] for turn in asked] == ["user", "assistant", "tool"]
    assert asked[2]["parts"] == [{"type": "tool_call_response", "id": None, "response": "42"}]
    said = json.loads(told["gen_ai.output.messages"])[0]["parts"]
    assert said == [{"type": "reasoning", "content": "Hm."}, {"type": "text", "content": "It is 42."}]


def test_a_record_without_texts_has_none_of_an_answer_either() -> None:
    kept = msgspec.structs.replace(make_record(), messages=None, answer="left over", consent=Consent(reuse=False))
    assert "left over" not in str(ContentAttributes("both", 1000).of_record(kept))


def test_texts_without_an_exporter_are_refused_at_the_start(settings: Settings) -> None:
    with pytest.raises(SettingsError, match="AIO_TRACE_EXPORTER"):
        configured_exporter(msgspec.structs.replace(settings, trace_content="gen_ai"))
