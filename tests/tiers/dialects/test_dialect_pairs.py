"""Any conversation of a client of each API reaches a server of each API with all that both know. What a pair loses is
what docs/results/losses.md says of it, whatever else the conversation has."""

import json
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import msgspec
import pytest
from hypothesis import given, settings

from benchmarks.gateway.fidelity.dialects import request_facts
from benchmarks.gateway.fidelity.losses import CLIENTS, WORD, Kind, catalogue, outcome_of, outcomes_of
from benchmarks.gateway.fidelity.provider import dialect_of
from benchmarks.gateway.fidelity.wires import KEYS
from gateway.base.inference_request import Caller
from gateway.inference.api.build_request import RequestHead, _generation
from tests.examples import examples
from tests.tiers.dialects.conversations import NAMES, SCHEMA, Body, Conversation, as_sent, conversations
from tiers.build import build_remote
from tiers.catalog.load import parse_catalog
from tiers.conversation import FAILED_RESULT, ReadRequest
from tiers.dialects.chat import MEDIA_FOLLOW
from tiers.dialects.chat_request import read_chat
from tiers.dialects.chat_schemas import ChatRequest
from tiers.dialects.gemini import GenerateContentRequest
from tiers.dialects.gemini_request import read_gemini
from tiers.dialects.messages import MessagesRequest
from tiers.dialects.messages_request import read_messages
from tiers.dialects.responses_items import as_sent as items_sent
from tiers.dialects.responses_items import given_items
from tiers.dialects.responses_request import read_responses
from tiers.dialects.responses_schemas import ResponsesRequest
from tiers.errors import TierRequestError
from tiers.remote.remote_tier import RemoteTier

LOSSES = outcomes_of((Path(__file__).parents[3] / "docs" / "results" / "losses.md").read_text("utf-8"))
HEAD = RequestHead(request_id="r", arrival=0.0, caller=Caller(), headers={})


def read(client: str, body: bytes) -> ReadRequest:
    """What the gateway reads of a body."""
    if client == "chat":
        return read_chat(msgspec.json.decode(body, type=ChatRequest))
    if client == "responses":
        asked = msgspec.json.decode(body, type=ResponsesRequest)
        return read_responses(asked, raw=items_sent(given_items(body), asked.tools))
    if client == "messages":
        return read_messages(msgspec.json.decode(body, type=MessagesRequest))
    return read_gemini(msgspec.json.decode(body, type=GenerateContentRequest), "m", stream=False, runs_tools=True)


@pytest.fixture(scope="module")
def tiers() -> Iterator[dict[str, RemoteTier]]:
    """A tier for the server of each dialect, which nothing is sent to."""
    with pytest.MonkeyPatch.context() as patch:
        for name, key in KEYS.items():
            patch.setenv(name, key)
        catalog = parse_catalog({"name": "losses"} | tomllib.loads(catalogue("http://127.0.0.1:1")), "losses")
        built = {spec.name: build_remote(catalog, spec) for spec in catalog.tiers}
        yield {name: tier for name, tier in built.items() if isinstance(tier, RemoteTier)}


class Received(NamedTuple):
    """What a server gets, in which dialect, and the names of what was left out or changed, which the caller sees."""

    dialect: str
    body: Body
    named: set[str]


def received(tier: RemoteTier, asked: ReadRequest) -> Received | None:
    """Return what the server of a tier gets; None where the request is refused."""
    request = _generation(HEAD, asked, 1)
    try:
        call, _, _ = tier._call(request, tier.tally(request))
    except TierRequestError:
        return None
    return Received(dialect_of(f"/{call.path}"), json.loads(call.body), {*request.sent.dropped, *request.sent.changed})


APART = re.compile(rf"(>|{WORD}|Q|\))\n+(?=[<QT]|{WORD})")
THOUGHT = "thoughts without a seal"
HAVE = {
    "system turn in the middle": ("chat", "responses", "messages"),
    THOUGHT: ("chat", "gemini"),
    "result of a failed call": ("messages",),
    "image in a result": ("messages",),
}
"""Parts of a round, by their names in the table, and the clients that have them."""


def parts_of(said: Conversation, client: str) -> dict[str, bool]:
    """Which of these a client's conversation has."""
    results = [call for round_ in said.rounds for call in round_.calls]
    parts = {
        "system turn in the middle": any(round_.aside for round_ in said.rounds),
        THOUGHT: any(round_.thought for round_ in said.rounds),
        "result of a failed call": any(call.has_failed for call in results),
        "image in a result": any(call.has_image for call in results),
    }
    return {name: has and client in HAVE[name] for name, has in parts.items()}


def expected_facts(said: Conversation, client: str, server: str, further: list[Kind]) -> Body:
    """What the server must get of the conversation, by the table of losses."""
    has = parts_of(said, client)
    becomes = {name: LOSSES[name, client, server] for name, is_there in has.items() if is_there}
    system, texts, results = [said.system], list[tuple[str, str]](), list[str]()
    users = [f"{round_.question}" for round_ in said.rounds] + [said.last]
    for part in [part for kind in further for part in kind.sent[client] if isinstance(part, dict)]:
        is_found = part.get("type") == "search_result" and server != "messages"
        shown = f"\n{part['title']} ({part['source']})\n{WORD}" if is_found else part.get("text", "")
        users[said.place % len(users)] += shown
    for round_, question in zip(said.rounds, users, strict=False):
        texts.append(("user", question))
        if round_.aside and becomes.get("system turn in the middle") == "changed":
            texts.append(("user", f"<system>\n{round_.aside}\n</system>"))
        elif round_.aside and "system turn in the middle" in becomes:
            system.append(round_.aside)
        texts.append(("assistant", round_.answer))
        for call in round_.calls:
            has_failed = call.has_failed and becomes.get("result of a failed call") == "changed"
            results.append(FAILED_RESULT + call.result if has_failed else call.result)
    numbers = range(len(results))
    return {
        "system": "\n\n".join(filter(None, system)),
        "texts": joined([*texts, ("user", users[-1])]),
        "calls": [[call.name, call.arguments] for round_ in said.rounds for call in round_.calls],
        "results": results,
        "answered": list(numbers),
        "tools": sorted(NAMES),
    }


def joined(texts: list[tuple[str, str]]) -> list[list[str]]:
    """Texts with those of one role after another as one. How they are set apart is the dialect's."""
    merged: list[list[str]] = []
    for role, text in texts:
        if merged and merged[-1][0] == role:
            merged[-1][1] += text
        else:
            merged.append([role, text])
    return [[role, APART.sub(r"\1", text)] for role, text in merged]


def facts_of(dialect: str, body: Body) -> Body:
    """What a request says, with places in stead of ids: the call of each result, by its number."""
    facts = request_facts(dialect, body)
    numbers = {call_id: number for number, (call_id, _, _) in enumerate(facts["calls"])}
    # Gemini's own ids are optional: results then follow the calls in their order.
    answered = [numbers.get(call_id, index) for index, (call_id, _) in enumerate(facts["results"])]
    return {
        "system": facts["system"],
        "texts": joined(facts["texts"]),
        "calls": [[name, arguments] for _, name, arguments in facts["calls"]],
        "results": [text.removesuffix(MEDIA_FOLLOW).rstrip() for _, text in facts["results"]],
        "answered": list(range(len(answered))) if dialect == "gemini" else answered,
        "tools": [name for name, _, schema in facts["tools"] if name in NAMES and schema == SCHEMA],
    }


def check_pair(said: Conversation, client: str, server: str, further: list[Kind], got: Received | None) -> None:
    """What a server gets is what the table says, of each part and field."""
    has = [name for name, is_there in parts_of(said, client).items() if is_there]
    told = {name: LOSSES[name, client, server] for name in [*has, *[kind.name for kind in further]]}
    thoughts = [round_ for round_ in said.rounds if round_.thought]
    if client == server == "gemini" and any(round_.calls for round_ in thoughts):
        # A turn with calls that Gemini has not signed is said again, without what was thought.
        told[THOUGHT] = "left out"
    assert (got is None) == ("refused" in told.values()), told
    if got is None:
        return
    assert facts_of(got.dialect, got.body) == expected_facts(said, client, server, further)
    text = json.dumps(got.body, ensure_ascii=False)
    for kind in further:
        is_named = told[kind.name] == "left out" and bool(got.named)
        assert outcome_of(kind, got.dialect, text, is_named=is_named) == told[kind.name], kind.name
    if told.get(THOUGHT) == "kept":
        assert all(json.dumps(round_.thought, ensure_ascii=False) in text for round_ in thoughts)
    lost = [name for name, outcome in told.items() if outcome == "left out"]
    assert len(got.named) >= bool(lost), told
    if not lost and "changed" not in told.values():
        assert not got.named


@pytest.mark.hypothesis
@pytest.mark.parametrize("client", CLIENTS)
@pytest.mark.parametrize("count", [100, pytest.param(10_000, marks=pytest.mark.properties)])
def test_a_conversation_survives_each_pair_of_apis(client: str, count: int, tiers: dict[str, RemoteTier]) -> None:
    @settings(max_examples=examples(count))
    @given(conversations)
    def survives(said: Conversation) -> None:
        body, further = as_sent(said, client)
        asked = read(client, json.dumps(body).encode())
        for server, tier in tiers.items():
            check_pair(said, client, server, further, received(tier, asked))

    survives()


def canonical(dialect: str, body: Body) -> Body:
    """A request in the one way to write it where the dialect has several, and without ids that Gemini did not give."""
    body = json.loads(json.dumps(body))
    if dialect == "chat" and "max_completion_tokens" in body:
        body["max_tokens"] = body.pop("max_completion_tokens")
    for turn in body["messages"] if dialect == "chat" else []:
        turn.pop("reasoning", None)
        if isinstance(turn["content"], list) and all(part["type"] == "text" for part in turn["content"]):
            turn["content"] = "\n".join(part["text"] for part in turn["content"])
    if dialect == "responses":
        body["input"] = [{"type": "message"} | item for item in body["input"]]
    if dialect == "gemini":
        declared = [function for entry in body["tools"] for function in entry["functionDeclarations"]]
        body["tools"] = [{"functionDeclarations": declared}]
        for turn in body["contents"]:
            for part in turn["parts"]:
                part.pop("thoughtSignature", None)
                (part.get("functionCall") or part.get("functionResponse") or {}).pop("id", None)
    return body


@pytest.mark.hypothesis
@pytest.mark.parametrize("dialect", CLIENTS)
@settings(max_examples=examples(200))
@given(conversations)
def test_a_server_of_the_callers_dialect_gets_its_request(
    dialect: str, tiers: dict[str, RemoteTier], said: Conversation
) -> None:
    # What its own table takes away, and where these models read no system, is not asked for.
    kept = [name for name in said.kinds if LOSSES.get((name, dialect, dialect)) == "kept"]
    thinks = [round_._replace(aside="", thought="" if dialect == "gemini" and round_.calls else round_.thought)
              for round_ in said.rounds]  # fmt: skip
    body, _ = as_sent(said._replace(rounds=thinks, kinds=kept), dialect)
    got = received(tiers[dialect], read(dialect, json.dumps(body).encode()))
    assert got is not None
    if got.dialect == dialect:
        asked, answered = canonical(dialect, body), canonical(dialect, got.body)
        assert {name: answered.get(name) for name in asked if name != "model"} == {
            name: value for name, value in asked.items() if name != "model"
        }
