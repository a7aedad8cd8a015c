"""How the work before a user's turn ended, as the messages say it: checks and exit codes, and what the user says next.

No judge is asked. Each kind of sign has a prior probability of being right, by which it counts as a label.
"""

import re
from collections.abc import Sequence
from typing import Literal

import msgspec

from classifier.features.client_text import users_text
from gateway.inference.sessions.tool_results import last_exit, read_result
from tiers.tier import ChatMessage

End = Literal["good", "bad"]
EndSign = Literal["check", "exit_code", "interrupted", "rejected", "accepted", "cut"]
# So many results before the user's turn are read, and so many characters of what the user says.
RESULTS_READ, TURN_READ = 8, 400
WEIGHTS: dict[EndSign, float] = {
    "check": 1.0,
    "rejected": 0.7,
    "cut": 0.7,
    "exit_code": 0.5,
    "accepted": 0.5,
    "interrupted": 0.4,
}
"""How much a sign counts as a label, of a judged one: priors, until a customer's own probes and feedback say better. A
test's result is the task's own check; an exit code is often that of a search without a match; a user interrupts for
many reasons."""
_REJECTED = re.compile(
    r"\b(?:"
    r"(?:still|again) (?:fail|broken|wrong|not work|doesn'?t|does not|the same|get)\w*"
    r"|(?:that|this|it)(?:'s| is| was)? (?:wrong|not (?:right|correct|what i)|incorrect|broken)"
    r"|(?:did|does|do|is)(?: not|n'?t) (?:work|compile|build|pass|fix|help|run)\w*"
    r"|(?:revert|undo|roll back) (?:that|this|it|your|the last|everything|all)"
    r"|try again|you broke|tests? (?:still )?fail\w*|same error"
    r")",
    re.IGNORECASE,
)
_ACCEPTED = re.compile(
    r"^\W*(?:(?:ok(?:ay)?|yes|cool|nice|great)[,.! ]+)?"
    r"(?:thanks?\b|thank you|perfect|great\b|works\b|it works|that works|that worked|looks good|lgtm|well done|awesome)"
    r"|^\W*(?:(?:now|please|ok(?:ay)?|great)[, ]+){0,3}(?:commit|push|merge|open a (?:pr|pull request))\b",
    re.IGNORECASE,
)
# Claude Code and Codex write these in the user's name.
_INTERRUPTED = ("[Request interrupted by user", "<turn_aborted>")


class WorkEnd(msgspec.Struct, frozen=True):
    """How the work ended, by which `sign`, in `words` for people that hold no text of the caller."""

    end: End
    sign: EndSign
    words: str


def end_before(messages: Sequence[ChatMessage], cut: bool) -> WorkEnd | None:
    """Return how the work before the last user turn of `messages` ended; None where nothing says so.

    `cut`: the last answer stopped at its token limit. What the user says outweighs what the tools said: a check that
    passed may be the wrong one.
    """
    said = messages[-1].content
    if any(mark in said[:TURN_READ] for mark in _INTERRUPTED):
        return WorkEnd("bad", "interrupted", "the user interrupted it")
    words = users_text(said.strip())
    # Clients without tools send a check's output as the user's turn.
    if read_result(words).check == "failed":
        return WorkEnd("bad", "check", "the user's turn shows a failed check")
    if _REJECTED.search(words[:TURN_READ]) is not None:
        return WorkEnd("bad", "rejected", "the user rejects it")
    results = [read_result(message.content) for message in _results_before(messages)]
    shown = last_exit(results)
    sign: EndSign = "check" if any(one.check is not None for one in results) else "exit_code"
    if shown == "failed":
        return WorkEnd("bad", sign, "the last check failed" if sign == "check" else "the last exit code was not 0")
    if cut:
        return WorkEnd("bad", "cut", "the last answer was cut off")
    if _ACCEPTED.search(words[:TURN_READ]) is not None:
        return WorkEnd("good", "accepted", "the user accepts it")
    if shown == "passed" and sign == "check":
        return WorkEnd("good", "check", "the last check passed")
    return None


def _results_before(messages: Sequence[ChatMessage]) -> list[ChatMessage]:
    """The last results of tools between the last two user turns, oldest first."""
    found: list[ChatMessage] = []
    for message in reversed(messages[:-1]):
        if message.role == "user" and users_text(message.content.strip()):
            break
        if message.role == "tool":
            found.append(message)
            if len(found) == RESULTS_READ:
                break
    return found[::-1]
