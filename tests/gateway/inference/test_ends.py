"""How an agent's work ended, as its messages say it: checks, exit codes, the user's words, and which of them counts."""

from typing import Literal

import pytest

from gateway.inference.agent_session import read_result
from gateway.inference.session_moves import WEIGHTS, end_before
from tiers.conversation import Call, Turn

CALL = Turn.of("assistant", calls=(Call(id="1", name="sh", arguments="{}"),))


def work(*results: str, said: str = "And now the next thing.") -> list[Turn]:
    """A turn with the results of calls, an answer, and what the user says then."""
    turns = [Turn.of("user", "Do it.")]
    for result in results:
        turns += [CALL, Turn.of("tool", result, call_id="1")]
    return [*turns, Turn.of("assistant", "Done."), Turn.of("user", said)]


@pytest.mark.parametrize(
    ("text", "check", "code"),
    [
        ("==== 2 failed, 3 passed in 0.12s ====", "failed", None),
        ("3 passed, 1 warning in 0.12s", "passed", None),
        ("0 failed, 3 passed in 1s", None, None),
        ("Ran 3 tests in 0.1s\n\nFAILED (failures=1)", "failed", None),
        ("Tests:       2 passed, 2 total", "passed", None),
        ("test result: FAILED. 1 passed; 1 failed", "failed", None),
        ("FAIL\tgithub.com/x/y\t0.1s", "failed", None),
        ("ok  \tgithub.com/x/y\t0.1s", "passed", None),
        ("Error: Exit code 1\nno such file", None, 1),
        ("Exit code: 0\nWall time: 0.2 seconds\nOutput:\n", None, 0),
        ('{"output": "x", "metadata": {"exit_code": 2}}', None, 2),
        ("<returncode>1</returncode>", None, 1),
        ("the function failed_tests returns 3 passed in words", None, None),
    ],
)
def test_a_result_says_what_became_of_its_command(text: str, check: str | None, code: int | None) -> None:
    found = read_result(text)
    assert (found.check, found.code) == (check, code)


@pytest.mark.parametrize(
    ("messages", "end", "sign"),
    [
        (work("==== 2 failed in 0.1s ===="), "bad", "check"),
        (work("==== 2 failed in 0.1s ====", "==== 2 passed in 0.1s ===="), "good", "check"),
        # A later listing of files is no check.
        (work("==== 2 failed in 0.1s ====", "Exit code: 0\nREADME.md"), "bad", "check"),
        (work("Exit code: 1"), "bad", "exit_code"),
        (work("Exit code: 1", "Exit code: 0"), None, None),
        (work("==== 2 passed in 0.1s ====", said="It still fails on tabs."), "bad", "rejected"),
        (work("==== 2 passed in 0.1s ====", said="[Request interrupted by user]"), "bad", "interrupted"),
        (work("README.md", said="Thanks! Commit it."), "good", "accepted"),
        (work("README.md", said="==== 1 failed in 0.1s ===="), "bad", "check"),
        (work("README.md", said="<system-reminder>tests still fail</system-reminder>Go on."), None, None),
        (work("README.md", said="Write a function that undoes a change."), None, None),
        (
            [Turn.of("user", "Do it."), CALL, Turn.of("user", "Go on.")],
            "bad",
            "unclean",
        ),
    ],
)
def test_what_the_user_says_outweighs_a_check_and_a_check_an_exit_code(
    messages: list[Turn], end: str | None, sign: str | None
) -> None:
    found = end_before(messages, cut=False)
    assert ((None, None) if found is None else (found.end, found.sign)) == (end, sign)
    if found is not None:
        assert 0 < WEIGHTS[found.sign] <= 1


@pytest.mark.parametrize(
    ("text", "build"),
    [
        ("Found 2 errors in 1 file (checked 3 source files)", "failed"),
        ("Success: no issues found in 3 source files", "passed"),
        ("src/a.ts(3,5): error TS2322: Type 'string' is not assignable to type 'number'.", "failed"),
        ("Found 0 errors. Watching for file changes.", "passed"),
        ("1 error, 0 warnings, 0 informations", "failed"),
        ("0 errors, 0 warnings, 0 informations", "passed"),
        ("error[E0308]: mismatched types\nerror: could not compile `x` (lib) due to 1 previous error", "failed"),
        ("    Finished `dev` profile [unoptimized + debuginfo] target(s) in 0.1s", "passed"),
        ("main.c:3:5: error: expected ';' before '}' token", "failed"),
        ("# example.com/x\n./main.go:5:2: undefined: y", "failed"),
        ("make: *** [Makefile:2: all] Error 1", "failed"),
        ("notes.md:3:5: the error is here", None),
        ("main.go:5:2: a line that a search found", None),
    ],
)
def test_a_result_says_whether_a_build_or_a_type_check_passed(text: str, build: str | None) -> None:
    found = read_result(text)
    assert (found.build, found.check) == (build, None)
    assert found.error == (build == "failed")


TYPES_FAILED, TYPES_PASSED = "Found 2 errors in 1 file (checked 3 source files)", "0 errors, 0 warnings"


@pytest.mark.parametrize(
    ("messages", "end", "sign"),
    [
        (work(TYPES_FAILED), "bad", "build"),
        (work(TYPES_FAILED, TYPES_PASSED), "good", "build"),
        (work(TYPES_PASSED, "Exit code: 1"), "good", "build"),
        # Tests outweigh the builds before them; a build that fails after them is newer.
        (work(TYPES_FAILED, "==== 2 passed in 0.1s ===="), "good", "check"),
        (work("==== 2 passed in 0.1s ====", TYPES_FAILED), "bad", "build"),
        (work("==== 2 failed in 0.1s ====", TYPES_PASSED), "bad", "check"),
    ],
)
def test_a_build_is_the_check_where_no_later_tests_are(messages: list[Turn], end: str, sign: str) -> None:
    found = end_before(messages, cut=False)
    assert found is not None
    assert (found.end, found.sign) == (end, sign)
    assert found.words.startswith("the last ")


@pytest.mark.parametrize(("posted", "end"), [("failed", "bad"), ("passed", "good")])
def test_a_posted_check_counts_in_place_of_those_in_the_messages(posted: Literal["failed", "passed"], end: str) -> None:
    for shown in (TYPES_FAILED, "==== 2 passed in 0.1s ====", "README.md"):
        found = end_before(work(shown), cut=False, posted=posted)
        assert found is not None
        assert (found.end, found.sign) == (end, "check")


def test_an_answer_that_was_cut_off_is_a_bad_end() -> None:
    found = end_before(work("README.md"), cut=True)
    assert found is not None
    assert (found.end, found.sign) == ("bad", "cut")


def test_a_malformed_call_is_no_call_that_failed() -> None:
    assert read_result("<tool_use_error>InputValidationError: path is missing</tool_use_error>").malformed
    failed = read_result("Error: Exit code 1")
    assert failed.error
    assert not failed.malformed


def test_the_work_of_reading_is_bounded() -> None:
    """A result of megabytes costs what its two ends cost."""
    assert read_result("x" * 5_000_000 + "\n==== 1 failed in 0.1s ====").check == "failed"
    assert read_result("Error: Exit code 3\n" + "x" * 5_000_000).code == 3
