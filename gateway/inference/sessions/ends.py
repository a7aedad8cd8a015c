"""How the work before a user's turn ended, as the messages say it: checks and exit codes, and what the user says next.

No judge is asked. Each kind of sign has a prior probability of being right, by which it counts as a label.
"""

import re
from collections.abc import Sequence
from typing import Literal

import msgspec

from classifier.features.stray_text import users_text
from classifier.policy.sessions import EndSign, EndSigns, work_end
from gateway.inference.sessions.tool_results import read_result
from tiers.tier import ChatMessage

# So many results before the user's turn are read, and so many characters of what the user says.
RESULTS_READ, TURN_READ = 8, 400
WEIGHTS: dict[EndSign, float] = {
    "check": 1.0,
    "rejected": 0.7,
    "cut": 0.7,
    "unclean": 0.7,
    "exit_code": 0.5,
    "accepted": 0.5,
    "interrupted": 0.4,
}
"""How much a sign counts as a label, of a judged one: priors, until a customer's own probes and feedback say better. A
test's result is the task's own check; an exit code is often that of a search without a match; a user interrupts for
many reasons."""
_WORDS: dict[EndSign, str] = {
    "check": "the last check",
    "exit_code": "the last exit code",
    "rejected": "the user rejects it",
    "accepted": "the user accepts it",
    "interrupted": "the user interrupted it",
    "cut": "the last answer was cut off",
    "unclean": "its last calls have no results",
}
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


class ReadEnd(msgspec.Struct, frozen=True):
    """How the work ended, by which `sign`, in `words` for people that hold no text of the caller."""

    end: Literal["good", "bad"]
    sign: EndSign

    @property
    def words(self) -> str:
        """What the sign says."""
        verb = {"good": " passed", "bad": " failed"}[self.end] if self.sign in ("check", "exit_code") else ""
        return _WORDS[self.sign] + verb


def end_before(messages: Sequence[ChatMessage], cut: bool) -> ReadEnd | None:
    """Return how the work before the last user turn of `messages` ended; None where nothing says so.

    `cut`: the last answer stopped at its token limit.
    """
    said = messages[-1].content
    words = users_text(said.strip())
    results = [read_result(message.content) for message in _results_before(messages)]
    # Clients without tools send a check's output as the user's turn.
    checks = [one.check for one in (*results, read_result(words)) if one.check is not None]
    codes = [one.code for one in results if one.code is not None]
    unanswered = len(messages) > 1 and bool(messages[-2].tool_calls)
    ended = work_end(
        EndSigns(
            clean=False if unanswered else None,
            check_passed=checks[-1] == "passed" if checks else None,
            exit_passed=codes[-1] == 0 if codes else None,
            cut=cut,
            user=_said_by_user(said, words[:TURN_READ]),
        )
    )
    return None if ended.end == "none" else ReadEnd(ended.end, ended.sign)


def _said_by_user(said: str, words: str) -> Literal["interrupts", "rejects", "accepts"] | None:
    if any(mark in said[:TURN_READ] for mark in _INTERRUPTED):
        return "interrupts"
    if _REJECTED.search(words) is not None:
        return "rejects"
    return "accepts" if _ACCEPTED.search(words) is not None else None


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
