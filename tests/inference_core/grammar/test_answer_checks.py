"""Finished answers are validated in processes of their own, within limits."""

import json
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest

from inference_core.grammar.limits import Limits
from inference_core.grammar.remote import GrammarChild

AGE = json.dumps({"type": "object", "properties": {"age": {"type": "integer"}}, "required": ["age"]})
# A lookahead needs an engine that backtracks; this text takes it longer than anybody waits.
ENDLESS = json.dumps({"type": "string", "pattern": "^(?=a)(a+)+$"})


LIMITS = Limits(check_seconds=0.2)


@pytest.fixture
def child() -> Iterator[GrammarChild]:
    made = GrammarChild()
    yield made
    made.close()


def test_texts_that_hold_have_no_error(child: GrammarChild) -> None:
    assert child.invalid([(AGE, '{"age": 3}'), ('{"const": 12345678901234567890}', "12345678901234567890")]) is None


def test_the_first_text_that_does_not_hold_is_named_with_its_keyword(child: GrammarChild) -> None:
    assert child.invalid([(AGE, '{"age": 3}'), (AGE, "{}")]) == (1, "$ does not hold for the keyword 'required'")
    assert child.invalid([(AGE, '{"age": 3')]) == (
        0,
        "it is no JSON: Expecting ',' delimiter: line 1 column 10 (char 9)",
    )


@pytest.mark.parametrize(
    ("schema", "said"),
    [
        (ENDLESS, "within the limits"),
        (json.dumps({"$ref": "https://example.org/other.json"}), "of a $ref"),
        ('{"type": "odd"}', "UnknownType"),
        ("[]", "cannot be checked"),
    ],
)
def test_what_cannot_be_checked_is_an_error(child: GrammarChild, schema: str, said: str) -> None:
    wrong = child.invalid([(schema, json.dumps("a" * 40 + "!"))], LIMITS)
    assert wrong is not None
    assert said in wrong[1]


def test_a_child_that_has_ended_is_started_again(child: GrammarChild) -> None:
    assert child.invalid([(AGE, '{"age": 3}')]) is None
    process = child._process
    assert process is not None
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert child.invalid([(AGE, '{"age": 3}')]) is None


def test_a_gateway_without_the_grammar_library_checks_as_well() -> None:
    program = """
import sys
sys.modules["llguidance"] = None
from inference_core.grammar.child import AnswerValidator
for pattern in ("^[^,]+$", "^(?<first>[^,]+)$"):
    validator = AnswerValidator(f'{{"type": "string", "pattern": "{pattern}"}}')
    print(validator.error('"ab"'), validator.error('"a,b"'))
"""
    said = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True
    ).stdout
    assert said == "None $ does not hold for the keyword 'pattern'\n" * 2
