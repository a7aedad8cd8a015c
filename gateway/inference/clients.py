"""Recognise the client of a request and its session, from headers, metadata and the places where its texts are.

A request that shows no sign of a client costs a few look-ups of headers, the first characters of its system
message and the ends of its last one (`gateway.inference.front_ends`). The signs are rows of
`tiers/dialects/quirks/clients.toml`, with the version that sent them: a rule is only as good as its newest version.
`tests/gateway/inference/recorded/` has what each client sent on the wire, and the test of the rules reads it.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from gateway.base.inference_request import ClientTurn, TurnKind
from gateway.inference.front_ends import front_end_of
from tiers.conversation import Turn
from tiers.dialects.quirks import ClientRule, client_rows

CAPTURED = "captured"
"""The source of a row whose client's requests are kept with the tests."""
RULES = client_rows().clients
CONVERSATION = "x-aio-conversation"
MAX_ID = 128
# Longer values of headers are not read.
MAX_METADATA = 4096
# A rule's marks are searched in so many messages at either end: in so many characters at either end of a turn, and at
# the beginning of instructions.
MOST_MESSAGES = 4
WINDOW, SYSTEM_WINDOW = 32_768, 4096
_ID = re.compile(rf"[A-Za-z0-9._:-]{{1,{MAX_ID}}}\Z")
# `user_HASH_account_UUID_session_UUID`, and the JSON object that newer versions write.
_USER_SESSION = re.compile(r"user_[0-9A-Za-z]{0,128}_account_[0-9A-Za-z-]{0,64}_session_([A-Za-z0-9._:-]{1,128})\Z")
_PRODUCTS = {product: rule for rule in RULES for product in rule.products}
_SIGNS = tuple((sign, rule) for rule in RULES for sign in rule.signs)
# It alone tells its session in `metadata.user_id`.
_CLAUDE_CODE = next(rule for rule in RULES if rule.name == "claude-code")
_OPENINGS = tuple(opening for rule in RULES for opening in rule.openings)
# Codex says in a header of its own what it sends an agent for.
_TURN_METADATA = "x-codex-turn-metadata"


def recognised(
    headers: Mapping[str, str], metadata: Mapping[str, str] | None, messages: Sequence[Turn]
) -> ClientTurn | None:
    """Return what is known of the client and its session; None if nothing is.

    `metadata`: the caller's tags, of which `user_id` may name a session. Nothing here is authorisation, and nothing is
    refused: an id that is too long or has other characters is as if it were not there.
    """
    conversation = _id(headers.get(CONVERSATION))
    user = None if metadata is None else _session_of_user(metadata.get("user_id"))
    rule = _rule(headers, messages) or (None if user is None else _CLAUDE_CODE)
    if rule is None:
        if (front_end := front_end_of(messages)) is not None:
            return ClientTurn(client=front_end, session=conversation, kind="housekeeping")
        return None if conversation is None else ClientTurn(client="", session=conversation)
    said = _object(headers.get(_TURN_METADATA)) if _TURN_METADATA in rule.signs else {}
    session = conversation or _first(headers, rule.session) or _id(said.get("session_id")) or user
    agent, parent = _first(headers, rule.agent), _first(headers, rule.parent) or _id(said.get("parent_thread_id"))
    if agent == session:
        agent = None
    kind, plan_mode = _kind(rule, messages)
    plan_mode = plan_mode and kind == "main"
    started_by = next((headers[name] for name in rule.subagent if name in headers), "")
    if kind == "main" and (started_by == "compact" or str(said.get("request_kind")).startswith("compact")):
        kind = "compaction"
    elif kind == "main" and (started_by or parent or agent):
        kind = "subagent"
    return ClientTurn(client=rule.name, session=session, agent=agent, parent=parent, kind=kind, plan_mode=plan_mode)


def _rule(headers: Mapping[str, str], messages: Sequence[Turn]) -> ClientRule | None:
    product = headers.get("user-agent", "")[:64].partition("/")[0].lower()
    rule = _PRODUCTS.get(product)
    if rule is not None:
        return rule
    for sign, owner in _SIGNS:
        if sign in headers:
            return owner
    first = messages[0] if messages else None
    if first is None or first.role != "system" or not first.text.startswith(_OPENINGS):
        return None
    return next(rule for rule in RULES if rule.openings and first.text.startswith(rule.openings))


def _kind(rule: ClientRule, messages: Sequence[Turn]) -> tuple[TurnKind, bool]:
    """What the marks of `rule` say of the request, and whether they say that a plan is asked for."""
    kind: TurnKind = "main"
    plan = False
    texts = {"system": _opening(messages), "turn": _newest(messages)}
    for mark in rule.marks:
        if not any(mark.text in text for text in texts[mark.place]):
            continue
        if mark.means == "plan":
            plan = True
        elif kind == "main":
            kind = mark.means
    return kind, plan


def _opening(messages: Sequence[Turn]) -> list[str]:
    """The beginnings of the system messages before the first of another role."""
    openings = []
    for message in messages[:MOST_MESSAGES]:
        if message.role != "system":
            break
        openings.append(message.text[:SYSTEM_WINDOW])
    return openings


def _newest(messages: Sequence[Turn]) -> list[str]:
    """The newest message of the user and the client's instructions after it; none where results of tools are newest."""
    texts: list[str] = []
    for message in reversed(messages[-MOST_MESSAGES:]):
        if message.role not in ("user", "system"):
            break
        text = message.text
        texts.append(text if len(text) <= 2 * WINDOW else f"{text[:WINDOW]}\n{text[-WINDOW:]}")
        if message.role == "user":
            return texts
    return []


def _first(headers: Mapping[str, str], names: Sequence[str]) -> str | None:
    return next((value for name in names if (value := _id(headers.get(name))) is not None), None)


def _id(candidate: object) -> str | None:
    return candidate if isinstance(candidate, str) and _ID.match(candidate) else None


def _session_of_user(user_id: str | None) -> str | None:
    if not user_id or len(user_id) > MAX_METADATA:
        return None
    if user_id.startswith("{"):
        return _id(_object(user_id).get("session_id"))
    matched = _USER_SESSION.match(user_id)
    return None if matched is None else matched[1]


def _object(text: str | None) -> dict[str, Any]:
    """The JSON object that `text` is, empty if it is none or too long."""
    if text is None or len(text) > MAX_METADATA:
        return {}
    try:
        return msgspec.json.decode(text, type=dict[str, Any])
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return {}
