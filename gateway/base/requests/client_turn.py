"""What an agent's client says of one of its requests: which session it belongs to, and what it is for."""

from typing import Literal

import msgspec

TurnKind = Literal["main", "housekeeping", "compaction", "subagent"]


class ClientTurn(msgspec.Struct, frozen=True, kw_only=True):
    """One request of a known client, or of a caller that names its conversation.

    `client`: its name in `gateway.inference.sessions.client_rules`, "" for a caller that is none of them. `session`:
    its id of the session, `agent` that of an agent within it, None for the main one, and `parent` the agent or session
    that started that one. They are hints of the caller: at most 128 plain characters each, and without meaning outside
    the caller's key (`gateway.inference.sessions.client_turn.session_digest`). `kind`: housekeeping is a title, a topic
    check or a commit message; compaction a summary in place of a long history. `plan_mode`: a plan is asked for, and
    nothing may be changed yet.
    """

    client: str
    session: str | None = None
    agent: str | None = None
    parent: str | None = None
    kind: TurnKind = "main"
    plan_mode: bool = False
