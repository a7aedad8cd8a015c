"""Sessions of ten steps as agents' clients send them: a title, a loop, a failed check, a loop that passes, thanks.

Each client speaks its own API and sends its own headers; the texts of its tools' results are those of its own format.
"""

from collections.abc import Iterator
from typing import Any, Literal, NamedTuple

Role = Literal["user", "call", "result"]


class Turn(NamedTuple):
    """A turn of the history, in no client's form."""

    role: Role
    text: str


class Step(NamedTuple):
    """One request of a client: what it is, its path, headers and body."""

    name: str
    path: str
    headers: dict[str, str]
    body: dict[str, Any]


TASK, AGAIN, NEXT = "Fix the parser's error on empty input.", "Make it pass.", "Thanks! Now rename the file."
FAILED = "==== 2 failed, 3 passed in 0.12s ===="
PASSED = "==== 5 passed in 0.11s ===="
# The turns after which each step asks: seven steps of two loops, one of the next topic, and one of its loop.
LOOPS = [
    Turn("user", TASK),
    Turn("call", "ls"), Turn("result", "parser.py tests"),
    Turn("call", "cat parser.py"), Turn("result", "def parse(text): return text[0]" + " #" * 4000),
    Turn("call", "pytest"), Turn("result", FAILED),
    Turn("user", AGAIN),
    Turn("call", "edit parser.py"), Turn("result", "edited"),
    Turn("call", "pytest -q"), Turn("result", PASSED),
    Turn("user", NEXT),
    Turn("call", "git mv parser.py reader.py"), Turn("result", "moved"),
]  # fmt: skip
NAMES = ["start", "loop", "loop", "loop", "after failure", "loop up", "loop up", "back", "loop back"]


def _histories() -> Iterator[list[Turn]]:
    for end in range(1, len(LOOPS) + 1):
        if LOOPS[end - 1].role != "call":
            yield LOOPS[:end]


def claude_code() -> Iterator[Step]:
    """Messages, with the session in a header and in the metadata."""
    headers = {"user-agent": "claude-cli/2.1.0 (external, cli)", "x-claude-code-session-id": "11111111-2222-3333"}
    tools = [{"name": "Bash", "input_schema": {"type": "object"}}]
    usual = {"model": "auto", "max_tokens": 64, "tools": tools, "system": "You are Claude Code."}
    title = {"model": "auto", "max_tokens": 64, "messages": [{"role": "user", "content": TASK}]}
    title["system"] = "Generate a concise, sentence-case title of this session."
    yield Step("title", "/v1/messages", headers, title)
    for name, history in zip(NAMES, _histories(), strict=True):
        messages: list[dict[str, Any]] = []
        for place, (role, text) in enumerate(history):
            if role == "user":
                messages.append({"role": "user", "content": text})
            elif role == "call":
                block = {"type": "tool_use", "id": f"toolu_{place}", "name": "Bash", "input": {"command": text}}
                messages.append({"role": "assistant", "content": [block]})
            else:
                failed = text == FAILED
                said = f"Exit code 1\n{text}" if failed else text
                one = {"type": "tool_result", "tool_use_id": f"toolu_{place - 1}", "content": said, "is_error": failed}
                messages.append({"role": "user", "content": [one]})
        yield Step(name, "/v1/messages", headers, usual | {"messages": messages})


def codex() -> Iterator[Step]:
    """Responses, whole histories, with the session in headers; it has no titles."""
    headers = {"user-agent": "codex_cli_rs/0.169.0", "session-id": "c0dec-1", "thread-id": "c0dec-1"}
    tools = [{"type": "function", "name": "shell", "parameters": {"type": "object"}}]
    usual = {"model": "auto", "tools": tools, "instructions": "You are Codex.", "store": False}
    for name, history in zip(NAMES, _histories(), strict=True):
        items: list[dict[str, Any]] = []
        for place, (role, text) in enumerate(history):
            if role == "user":
                items.append({"type": "message", "role": "user", "content": text})
            elif role == "call":
                call = {"type": "function_call", "call_id": f"call_{place}", "name": "shell"}
                items.append(call | {"arguments": f'{{"command": "{text}"}}'})
            else:
                code = 1 if text == FAILED else 0
                said = f"Exit code: {code}\nWall time: 0.2 seconds\nOutput:\n{text}"
                items.append({"type": "function_call_output", "call_id": f"call_{place - 1}", "output": said})
        yield Step(name, "/v1/responses", headers, usual | {"input": items})


def opencode() -> Iterator[Step]:
    """Chats with tools, with the session in a header, and titles."""
    headers = {"user-agent": "opencode/1.18.0", "x-session-id": "ses_opencode1"}
    tools = [{"type": "function", "function": {"name": "bash", "parameters": {"type": "object"}}}]
    title = [{"role": "system", "content": "You are a title generator."}, {"role": "user", "content": TASK}]
    yield Step("title", "/v1/chat/completions", headers, {"model": "auto", "messages": title})
    for name, history in zip(NAMES, _histories(), strict=True):
        messages: list[dict[str, Any]] = [{"role": "system", "content": "You are opencode."}]
        for place, (role, text) in enumerate(history):
            if role == "user":
                messages.append({"role": "user", "content": text})
            elif role == "call":
                function = {"name": "bash", "arguments": f'{{"command": "{text}"}}'}
                call = {"id": f"call_{place}", "type": "function", "function": function}
                messages.append({"role": "assistant", "content": None, "tool_calls": [call]})
            else:
                messages.append({"role": "tool", "tool_call_id": f"call_{place - 1}", "content": text})
        yield Step(name, "/v1/chat/completions", headers, {"model": "auto", "messages": messages, "tools": tools})


def aider() -> Iterator[Step]:
    """Chats without tools and without headers: each turn is the user's, and a check's output one of them."""
    system = {"role": "system", "content": "Act as an expert software developer.\nAlways use best practices."}
    turns = [
        ("start", TASK),
        ("turn", "And on white space."),
        ("turn", "And on tabs."),
        ("after failure", f"{FAILED}\nFix these."),
        ("turn up", "Say what you changed."),
        ("turn up", "Shorten the comment."),
        ("back", "Thanks! Rename the file."),
        ("turn back", "Add a line at the end."),
        ("turn back", "Name the function too."),
    ]
    messages = [system]
    for name, text in turns:
        messages = [*messages, {"role": "user", "content": text}]
        yield Step(name, "/v1/chat/completions", {}, {"model": "auto", "messages": messages})
        messages = [*messages, {"role": "assistant", "content": "Done."}]
    commit = {"role": "system", "content": "You are an expert software engineer that generates concise, one-line Git "
              "commit messages based on the provided diffs."}  # fmt: skip
    asked = [commit, {"role": "user", "content": "diff --git a/parser.py"}]
    yield Step("commit", "/v1/chat/completions", {}, {"model": "auto", "messages": asked})


CLIENTS = {"claude-code": claude_code, "codex": codex, "opencode": opencode, "aider": aider}
