"""Final answers that can be checked, and whether two answers agree on theirs."""

import pytest

from tiers.final_answer.extract import agreement, final_answer

NUMBER, OPEN = "How many legs do nine dogs have?", "Tell me about dogs."
CHOICE = "Which planet is nearest to the Sun?\nA. Venus\nB. Mercury"


@pytest.mark.parametrize(
    ("prompt", "answer", "other", "expected"),
    [
        (NUMBER, "They have 36 legs.", "9 * 4 = 36", 1.0),
        (NUMBER, "They have 36 legs.", "That makes 32.", 0.0),
        (NUMBER, "They have 36 legs.", "No idea.", 0.0),
        (NUMBER, "Some.", "36", None),
        (CHOICE, "B", "The answer is (B).", 1.0),
        (CHOICE, "Mercury", "A", 0.0),
        (OPEN, '{"a": 1, "b": [2]}', '{ "b": [2], "a": 1 }', 1.0),
        (OPEN, '{"a": 1}', '{"a": 2}', 0.0),
        (OPEN, "Dogs bark.", "Dogs bark.", None),
        (OPEN, "[" * 500, "[]", None),
        (NUMBER, "They have 36 legs. " * 1000, "36", 1.0),  # of a long text the end is read
        (OPEN, '{"a": "\ud800"}', "{}", None),
    ],
)
def test_answers_agree_if_their_checkable_results_are_equal(
    prompt: str, answer: str, other: str, expected: float | None
) -> None:
    assert agreement(prompt, answer, other) == expected
    assert (final_answer(prompt, answer) is None) is (expected is None)
