"""By which signs the clients of agents are recognised: data, with the version that sent them and its source.

A rule is only as good as its newest version: `tests/gateway/inference/sessions/recorded/` has what each client sent on
the wire, and the test of the rules reads it.
"""

from typing import Literal

import msgspec

from gateway.base.requests.client_turn import TurnKind

# Its requests are kept with the tests.
CAPTURED = "captured"


class Mark(msgspec.Struct, frozen=True):
    """A text in a request that says what it is for. `place`: in a system message, or in the last user turn."""

    means: TurnKind | Literal["plan"]
    place: Literal["system", "turn"]
    text: str


class ClientRule(msgspec.Struct, frozen=True, kw_only=True):
    """One client. `version`: the newest that was looked at, and `source`: how its requests were had.

    `products`: what its `user-agent` begins with, in lower case, up to the slash. `signs`: headers that nothing else
    sends. `openings`: what its first system message begins with, for a client whose headers say nothing. `session`,
    `agent`, `parent`, `subagent`: headers in order of trust, the last of which says which kind of agent asks. `marks`:
    the first one that is there counts.
    """

    name: str
    version: str
    source: str
    products: tuple[str, ...] = ()
    signs: tuple[str, ...] = ()
    openings: tuple[str, ...] = ()
    session: tuple[str, ...] = ()
    agent: tuple[str, ...] = ()
    parent: tuple[str, ...] = ()
    subagent: tuple[str, ...] = ()
    marks: tuple[Mark, ...] = ()


CLAUDE_CODE = ClientRule(
    name="claude-code",
    version="2.1.197",
    source=CAPTURED,
    products=("claude-cli", "claude-code"),
    signs=("x-claude-code-session-id",),
    session=("x-claude-code-session-id",),
    agent=("x-claude-code-agent-id",),
    parent=("x-claude-code-parent-agent-id",),
    marks=(
        Mark("housekeeping", "system", "Generate a concise, sentence-case title"),
        Mark("housekeeping", "system", "Generate a short kebab-case name"),
        Mark("compaction", "turn", "Your task is to create a detailed summary of "),
        Mark("plan", "turn", "Plan mode is active"),
        Mark("plan", "turn", "Plan mode still active"),
    ),
)
CODEX = ClientRule(
    name="codex",
    version="0.169.0",
    source=CAPTURED,
    products=("codex_cli_rs", "codex_exec", "codex-tui", "codex_vscode"),
    signs=("x-codex-turn-metadata",),
    session=("session-id", "session_id"),
    agent=("thread-id",),
    parent=("x-codex-parent-thread-id",),
    subagent=("x-openai-subagent",),
    marks=(
        Mark("compaction", "turn", "You are performing a CONTEXT CHECKPOINT COMPACTION"),
        Mark("plan", "system", "# Collaboration Mode: Plan"),
    ),
)
OPENCODE = ClientRule(
    name="opencode",
    version="1.18.33",
    source=CAPTURED,
    products=("opencode",),
    signs=("x-opencode-session",),
    session=("x-session-id", "x-opencode-session", "x-session-affinity"),
    parent=("x-parent-session-id",),
    marks=(
        Mark("housekeeping", "system", "You are a title generator"),
        Mark("compaction", "turn", "Provide a detailed prompt for continuing our conversation above"),
        Mark("plan", "turn", "# Plan Mode - System Reminder"),
    ),
)
AIDER = ClientRule(
    name="aider",
    version="0.86.2",
    source=CAPTURED,
    openings=(
        "Act as an expert software developer.",
        "Act as an expert software engineer",
        "Act as an expert architect engineer",
        "Act as an expert code analyst.",
        "You are an expert software engineer that generates concise",
    ),
    marks=(
        Mark("housekeeping", "system", "You are an expert software engineer that generates concise"),
        Mark("compaction", "system", "*Briefly* summarize this partial conversation about programming."),
        Mark("plan", "system", "Act as an expert architect engineer"),
    ),
)
CLINE = ClientRule(
    name="cline",
    version="3",
    source="https://github.com/cline/cline",
    products=("cline", "roo-code", "kilo-code"),
    signs=("x-task-id",),
    session=("x-task-id",),
    marks=(Mark("plan", "turn", "# Current Mode\nPLAN MODE"),),
)
RULES = (CLAUDE_CODE, CODEX, OPENCODE, AIDER, CLINE)
