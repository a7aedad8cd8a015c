"""Clients, their sessions and what a request is for, recognised in what the real ones sent; others lose nothing."""

from collections.abc import Mapping
from typing import Any

import msgspec
import pytest

from gateway.base.inference_request import ClientTurn
from gateway.inference import clients
from gateway.inference.clients import CAPTURED, MAX_ID, RULES, recognised
from gateway.inference.conversations import session_digest
from tests.clients.recorded_request import RecordedRequest, read_recorded
from tiers.conversation import Turn
from tiers.dialects.chat_request import turns_of
from tiers.dialects.chat_schemas import ChatRequest
from tiers.dialects.messages import MessagesRequest
from tiers.dialects.messages_request import read_messages
from tiers.dialects.responses_request import read_responses
from tiers.dialects.responses_schemas import ResponsesRequest

RECORDED = read_recorded()
NAMES = {rule.name for rule in RULES}


def chat_of(one: RecordedRequest) -> tuple[dict[str, str] | None, list[Turn]]:
    """The tags and turns of a recorded body, whose fields that nothing here reads are left out."""
    if one.path.startswith("/v1/messages"):
        names = ("model", "messages", "system", "max_tokens", "metadata")
        body = {n: v for n, v in one.body.items() if n in names}
        read = read_messages(msgspec.json.decode(msgspec.json.encode(body), type=MessagesRequest))
        return read.metadata, read.turns or []
    if one.path.startswith("/v1/responses"):
        kept = ("message", "function_call", "function_call_output")
        given = one.body["input"]
        items = given if isinstance(given, str) else [i for i in given if i.get("type", "message") in kept]
        body = {"model": one.body["model"], "input": items, "instructions": one.body.get("instructions")}
        read = read_responses(msgspec.json.decode(msgspec.json.encode(body), type=ResponsesRequest))
        return read.metadata, read.turns or []
    return None, turns_of(msgspec.convert({n: one.body[n] for n in ("model", "messages")}, ChatRequest).messages)


def turn_of(one: RecordedRequest) -> ClientTurn | None:
    return recognised(one.headers, *chat_of(one))


@pytest.mark.parametrize("one", RECORDED, ids=lambda one: f"{one.client}-{one.name}")
def test_a_recorded_request_is_its_clients_and_for_what_it_was(one: RecordedRequest) -> None:
    turn = turn_of(one)
    if one.client not in NAMES:
        assert turn is None, "a library is no agent's client"
        return
    assert turn is not None
    expected = {"title": "housekeeping", "commit": "housekeeping", "summary": "compaction", "subagent": "subagent"}
    assert (turn.client, turn.kind) == (one.client, expected.get(one.name.partition("-")[0], "main"))
    assert turn.plan_mode == one.name.startswith("plan")


def test_the_requests_of_a_session_have_one_id_where_the_client_sends_any() -> None:
    sessions: dict[str, set[str | None]] = {}
    for one in RECORDED:
        if (turn := turn_of(one)) is not None:
            sessions.setdefault(one.client, set()).add(turn.session)
    assert sessions["aider"] == {None}
    for client in ("claude-code", "codex", "opencode"):
        assert None not in sessions[client], client


def test_every_agents_rule_but_those_with_a_source_elsewhere_was_recorded() -> None:
    recorded = {one.client: one.version for one in RECORDED}
    for rule in RULES:
        if rule.source == CAPTURED:
            assert recorded[rule.name] == rule.version


def said(headers: Mapping[str, str], metadata: dict[str, str] | None = None, *texts: str) -> ClientTurn | None:
    return recognised(headers, metadata, [Turn.of("user", text) for text in texts or ("hi",)])


class Unread(list[Any]):
    """Messages that may only be looked at where a client may be found out from: the first and the last one."""

    def __init__(self, system: str) -> None:
        super().__init__([Turn.of("system", system), Turn.of("user", "hi")])
        self.read: set[object] = set()

    def __getitem__(self, place: Any) -> Any:
        self.read.add(place)
        return super().__getitem__(place)

    def __iter__(self) -> Any:
        raise AssertionError("the body was scanned")


def test_no_message_but_the_first_and_the_last_is_read_without_a_sign_of_a_client() -> None:
    messages = Unread("You are helpful. Act as an expert software developer.")
    assert recognised({"user-agent": "OpenAI/Python 2.8"}, {"user_id": "u-1"}, messages) is None
    assert messages.read <= {0, -1}


def test_a_callers_own_conversation_comes_first_and_needs_no_client() -> None:
    assert said({"x-aio-conversation": "mine"}) == ClientTurn(client="", session="mine")
    headers = {"user-agent": "claude-cli/2.1.0 (external, cli)", "x-claude-code-session-id": "theirs"}
    assert said(headers) == ClientTurn(client="claude-code", session="theirs")
    assert said(headers | {"x-aio-conversation": "mine"}) == ClientTurn(client="claude-code", session="mine")


@pytest.mark.parametrize(
    "user_id",
    [
        "user_0a1b_account_7c-9d_session_11-22",
        "user_0a1b_account__session_11-22",
        '{"device_id":"d","session_id":"11-22"}',
    ],
)
def test_claude_codes_user_id_names_its_session(user_id: str) -> None:
    assert said({}, {"user_id": user_id}) == ClientTurn(client="claude-code", session="11-22")


@pytest.mark.parametrize(
    "user_id",
    ["", "user-17", "{", "{}", '{"session_id": 5}', "[1]", "user_a_account_b_session_", "user_a_account_b_session_x y",
     '{"session_id": "' + "a" * (MAX_ID + 1) + '"}', "{" * 5000],
)  # fmt: skip
def test_another_user_id_names_none(user_id: str) -> None:
    assert said({}, {"user_id": user_id}) is None


@pytest.mark.parametrize("given", ["", "a b", "a" * (MAX_ID + 1), "ä", "x\ny", "{}"])
def test_an_id_with_other_characters_is_as_if_it_were_not_there(given: str) -> None:
    assert said({"x-task-id": given}) == ClientTurn(client="cline")
    assert said({"x-aio-conversation": given}) is None


def test_an_agent_within_a_session_is_a_session_of_its_own() -> None:
    headers = {"x-claude-code-session-id": "s", "x-claude-code-agent-id": "a", "x-claude-code-parent-agent-id": "p"}
    main, agent = said({"x-claude-code-session-id": "s"}), said(headers)
    assert agent == ClientTurn(client="claude-code", session="s", agent="a", parent="p", kind="subagent")
    assert main is not None
    assert agent is not None
    assert session_digest(main, "key") != session_digest(agent, "key")


def test_codex_says_in_a_header_what_an_agent_is_for() -> None:
    headers = {"user-agent": "codex_exec/0.169.0", "session-id": "s"}
    assert said(headers | {"thread-id": "s"}) == ClientTurn(client="codex", session="s")
    for kind, means in (("review", "subagent"), ("compact", "compaction")):
        turn = said(headers | {"x-openai-subagent": kind})
        assert turn is not None
        assert turn.kind == means


def test_a_session_belongs_to_its_key() -> None:
    turn = ClientTurn(client="codex", session="s")
    assert session_digest(turn, "one") != session_digest(turn, "two")
    assert session_digest(turn, "one") == session_digest(ClientTurn(client="codex", session="s"), "one")
    assert session_digest(ClientTurn(client="codex"), "one") is None


def test_instructions_after_the_users_turn_do_not_hide_what_it_asks_for() -> None:
    asked = Turn.of("user", "Your task is to create a detailed summary of the conversation so far.")
    rules = Turn.of("system", "Two skills are available.")
    turn = recognised({"user-agent": "claude-cli/2.1.197"}, None, [asked, rules])
    assert turn is not None
    assert turn.kind == "compaction"


def test_marks_are_looked_for_at_the_ends_of_a_long_turn() -> None:
    headers = {"user-agent": "claude-cli/2.1.0"}
    mark = "Plan mode is active"
    for text in (f"{mark}{'x' * 100_000}", f"{'x' * 100_000}{mark}"):
        turn = said(headers, None, text)
        assert turn is not None
        assert turn.plan_mode
    between = said(headers, None, f"{'x' * 2 * clients.WINDOW}{mark}{'x' * 2 * clients.WINDOW}")
    assert between is not None
    assert not between.plan_mode


GEMINI_CLI = {"user-agent": "GeminiCLI-tui/0.61.0/gemini-3-pro (linux; x64; terminal)"}


@pytest.mark.parametrize(
    ("system", "kind"),
    [
        ("You are Gemini CLI, an interactive CLI agent.", "main"),
        ("You are a specialized Task Routing AI. Your sole function is to classify.", "housekeeping"),
        (
            "You are a specialized system component responsible for distilling chat history into a structured XML "
            "<state_snapshot>.",
            "compaction",
        ),
    ],
)
def test_gemini_cli_is_known_by_its_agent_and_its_background_prompts(system: str, kind: str) -> None:
    turns = [Turn.of("system", system), Turn.of("user", "Fix the test.")]
    turn = recognised(GEMINI_CLI, None, turns)
    assert turn is not None
    assert (turn.client, turn.kind) == ("gemini-cli", kind)
