"""What the results of tools say of a step: a check that passed or failed, an exit code, an error, a malformed call.

The rules are data with their source. Only the two ends of a text are read: commands report at the end, and clients
write what became of a call at the beginning.
"""

import re
from collections.abc import Iterable, Sequence
from typing import Literal

import msgspec

from tiers.tier import ChatMessage

Exit = Literal["passed", "failed"]
HEAD, TAIL = 512, 2048


class SummaryRule(msgspec.Struct, frozen=True):
    """How a test runner says how its run ended. `source`: the runner whose words these are."""

    source: str
    failed: str
    passed: str


# Multi-line patterns; of a text the last match of any counts.
SUMMARIES = (
    SummaryRule(
        "pytest",
        r"^=*\s*(?:\d+ [a-z]+, )*[1-9]\d* (?:failed|errors?)\b.* in \d[\d.]*s",
        r"^=*\s*[1-9]\d* passed\b(?:, \d+ (?:skipped|warnings?|deselected|x\w+|subtests passed))* in \d[\d.]*s",
    ),
    SummaryRule("unittest", r"^FAILED \((?:failures|errors)=\d+", r"^OK(?: \(skipped=\d+\))?\s*$"),
    SummaryRule(
        "jest, vitest", r"^\s*Tests:?\s+.*\b[1-9]\d* failed", r"^\s*Tests:?\s+(?:\d+ skipped, )?[1-9]\d* passed"
    ),
    SummaryRule("mocha", r"^\s*[1-9]\d* failing\b", r"^\s*[1-9]\d* passing\b"),
    SummaryRule("cargo test", r"^test result: FAILED\.", r"^test result: ok\."),
    SummaryRule("go test", r"^(?:--- FAIL: |FAIL\s)", r"^ok\s+\S+\s+(?:\d|\(cached\))"),
    SummaryRule("maven, gradle", r"^(?:\[ERROR\] )?.*BUILD FAIL(?:URE|ED)", r"^(?:\[INFO\] )?BUILD SUCCESS"),
    SummaryRule("rspec", r"^\d+ examples?, [1-9]\d* failures?", r"^[1-9]\d* examples?, 0 failures"),
    SummaryRule("dotnet test", r"^Failed!\s+- ", r"^Passed!\s+- "),
)
# The code is the first group. By client or framework: Claude Code and Codex, Codex's JSON, mini-swe-agent, OpenHands,
# shells and CI systems.
EXIT_CODES = (
    r"^(?:Error: )?(?:Process exited with |Exit )code:? (-?\d{1,5})\b",
    r'"exit_code":\s*(-?\d{1,5})\b',
    r"<(?:returncode|exit_code)>(-?\d{1,5})</",
    r"finished with exit code (-?\d{1,5})\b",
    r"\b(?:exited with|exit)(?: status| code):? (-?\d{1,5})\b",
)
# What Messages' `is_error` becomes (`gateway.inference.api.messages.conversation`), and clients' own words for it.
ERRORS = ("Error:", "<tool_use_error>", "Tool execution failed", "Command failed")
# A call that had no form that its tool could read. Claude Code, Codex, opencode, pydantic in frameworks.
MALFORMED = (
    "InputValidationError",
    "failed to parse function arguments",
    "called with invalid arguments",
    "Invalid arguments for tool",
    "Error parsing arguments",
    "Unknown tool",
    "No such tool available",
)
_FAILED = re.compile("|".join(f"(?:{rule.failed})" for rule in SUMMARIES), re.MULTILINE)
_PASSED = re.compile("|".join(f"(?:{rule.passed})" for rule in SUMMARIES), re.MULTILINE)
_EXIT_CODES = re.compile("|".join(EXIT_CODES), re.MULTILINE)


class ResultSigns(msgspec.Struct, frozen=True, kw_only=True):
    """One result. `check`: what a test run in it says, and `code`: its exit code, None where it shows none."""

    check: Exit | None = None
    code: int | None = None
    error: bool = False
    malformed: bool = False


def read_result(content: str) -> ResultSigns:
    """Return what the text of one result says. A failed check outweighs a passed one, as a run of several suites."""
    text = content if len(content) <= HEAD + TAIL else f"{content[:HEAD]}\n{content[-TAIL:]}"
    check: Exit | None = None
    if _FAILED.search(text) is not None:
        check = "failed"
    elif _PASSED.search(text) is not None:
        check = "passed"
    code = None
    for match in _EXIT_CODES.finditer(text):
        code = int(next(group for group in match.groups() if group is not None))
    head = text[:HEAD]
    malformed = any(words in head for words in MALFORMED)
    error = malformed or check == "failed" or bool(code) or head.lstrip().startswith(ERRORS)
    return ResultSigns(check=check, code=code, error=error, malformed=malformed)


def new_results(messages: Sequence[ChatMessage]) -> list[ChatMessage]:
    """The results of tools after the last answer, oldest first."""
    found: list[ChatMessage] = []
    for message in reversed(messages):
        if message.role == "assistant":
            break
        if message.role == "tool":
            found.append(message)
    return found[::-1]


def last_exit(signs: Iterable[ResultSigns]) -> Exit | None:
    """How the last check among `signs` (oldest first) ended; without any, the last exit code."""
    checks: list[Exit] = []
    codes: list[Exit] = []
    for one in signs:
        if one.check is not None:
            checks.append(one.check)
        elif one.code is not None:
            codes.append("failed" if one.code else "passed")
    shown = checks or codes
    return shown[-1] if shown else None
