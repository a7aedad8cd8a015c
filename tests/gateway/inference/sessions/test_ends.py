"""How an agent's work ended, as its messages say it: checks, exit codes, the user's words, and which of them counts."""

import pytest

from gateway.inference.agent_session import read_result
from gateway.inference.session_moves import WEIGHTS, end_before
from tiers.message_content import ToolCall
from tiers.tier import ChatMessage

CALL = ChatMessage(role="assistant", content="", tool_calls=(ToolCall(id="1", name="sh", arguments="{}"),))


def work(*results: str, said: str = "And now the next thing.") -> list[ChatMessage]:
    """A turn with the results of calls, an answer, and what the user says then."""
    turns = [ChatMessage(role="user", content="Do it.")]
    for result in results:
        turns += [CALL, ChatMessage(role="tool", content=result, tool_call_id="1")]
    return [*turns, ChatMessage(role="assistant", content="Done."), ChatMessage(role="user", content=said)]


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
            [ChatMessage(role="user", content="Do it."), CALL, ChatMessage(role="user", content="Go on.")],
            "bad",
            "unclean",
        ),
    ],
)
def test_what_the_user_says_outweighs_a_check_and_a_check_an_exit_code(
    messages: list[ChatMessage], end: str | None, sign: str | None
) -> None:
    found = end_before(messages, cut=False)
    assert ((None, None) if found is None else (found.end, found.sign)) == (end, sign)
    if found is not None:
        assert 0 < WEIGHTS[found.sign] <= 1


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
