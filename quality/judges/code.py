"""The judge for Python code: answers are parsed, and equal programs are equal answers."""

import ast
import re
import warnings
from typing import Any

from quality.judges.judge import Judge, JudgeVerdict
from tiers.final_answer.text import mentions

_ASKS_FOR_CODE = re.compile(
    r"\b(?:write|implement|complete|create|define|code|fix|refactor|rewrite|give me)\b[^?!\n]{0,80}"
    r"\b(?:function|class|script|program|method|code|snippet|decorator|generator)\b",
    re.IGNORECASE,
)
_PYTHON = re.compile(r"\bpython\b|\bdef \w+\(|^\s*assert \w+\(|>>> ", re.IGNORECASE | re.MULTILINE)
_FENCE = re.compile(r"```[ \t]*([\w+#.-]*)[^\n]*\n(.*?)(?:\n[ \t]*```|\Z)", re.DOTALL)
_PYTHON_FENCES = ("", "python", "py", "python3")
# Longer programs are skipped, which bounds the parser's time and depth.
_MOST_CHARS = 65_536


class CodeJudge(Judge):
    """Applies to prompts that ask for Python code. It abstains on programs that parse and differ.

    Code is parsed, never run: parsing is a minimal requirement.
    """

    name = "code"
    basis = "check"

    async def judge(
        self, *, prompt: str, answer: str, reference_answer: str, response_format: dict[str, Any] | None = None
    ) -> JudgeVerdict:
        """Score 1 if both are the same program or the reference does not parse, 0 if only the answer does not."""
        if not self.may_decide(prompt, response_format):
            return JudgeVerdict(no_worse=None, reason="the prompt does not ask for Python code")
        if max(len(answer), len(reference_answer)) > _MOST_CHARS:
            return JudgeVerdict(no_worse=None, reason=f"an answer is longer than {_MOST_CHARS} characters")
        given, expected = _program(answer), _program(reference_answer)
        if given is None and expected is not None:
            return JudgeVerdict(
                no_worse=False, score=0.0, reason="the answer's code does not parse, the strongest tier's does"
            )
        if expected is None:
            return JudgeVerdict(no_worse=True, score=1.0, reason="the strongest tier's code does not parse")
        if given == expected:
            return JudgeVerdict(no_worse=True, score=1.0, reason="both answers are the same program")
        return JudgeVerdict(no_worse=None, reason="both answers are programs that parse and differ")

    def may_decide(self, prompt: str, response_format: dict[str, Any] | None) -> bool:
        """See `Judge.may_decide`."""
        if response_format is not None or not mentions(prompt.casefold(), "python", "def ", "assert ", ">>> "):
            return False
        return bool(_ASKS_FOR_CODE.search(prompt) and _PYTHON.search(prompt))


def _program(text: str) -> str | None:
    """Return the canonical form of the code in `text` (its fenced Python blocks, or all of it); None if it does not
    parse."""
    blocks = _FENCE.findall(text)
    source = "\n".join(code for language, code in blocks if language.lower() in _PYTHON_FENCES) if blocks else text
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", SyntaxWarning)
            tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
    # Prose such as "sorry" parses as a name; a program does something.
    if not any(not isinstance(statement, ast.Expr) or isinstance(statement.value, ast.Call) for statement in tree.body):
        return None
    try:
        return ast.dump(tree)
    except RecursionError:
        return None
