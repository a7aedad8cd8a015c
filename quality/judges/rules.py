"""Judges that compare two texts by rule: Python code, of which equal programs are equal answers; verifiable answers,
which are letters, numbers, formulas, literals, labels and texts requested verbatim; and similarity, a signal that
never makes a label."""

import ast
import re
import textwrap
import warnings
from collections import Counter
from collections.abc import Awaitable, Callable
from math import sqrt
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from quality.judges.judge import Judge, JudgeVerdict
from tiers.final_answer.extract import agree, expected_kind, final_answer
from tiers.final_answer.text import mentions, normalised

_ASKS_FOR_CODE = re.compile(
    r"\b(?:write|implement|complete|create|define|code|fix|refactor|rewrite|give me)\b[^?!\n]{0,80}"
    r"\b(?:function|class|script|program|method|code|snippet|decorator|generator)\b",
    re.IGNORECASE,
)
_PYTHON = re.compile(r"\bpython\b|\bdef \w+\(|^\s*assert \w+\(|>>> ", re.IGNORECASE | re.MULTILINE)
_FENCE = re.compile(r"```[ \t]*([\w+#.-]*)[^\n]*\n(.*?)(?:\n[ \t]*```|\Z)", re.DOTALL)
_PYTHON_FENCES = ("python", "py", "python3")
_LOOKS_LIKE_PYTHON = re.compile(
    r"^[ \t]*(?:(?:async )?def \w+ ?\(|class \w+(?:\([^\n]*\))?:"
    r"|import [\w.]+(?: as \w+)?[ \t]*$|from [\w.]+ import \w)",
    re.MULTILINE,
)
# Lines of other languages, and sentences.
_SOMETHING_ELSE = re.compile(
    r"(?:[;{]|^[ \t]*end)[ \t]*$|^[ \t]*[A-Z][\w',-]*(?: [\w',()-]+){3,}[.:!]?[ \t]*$", re.MULTILINE
)
_TRANSCRIPT = re.compile(r"^[ \t]*>>> ", re.MULTILINE)
# Longer programs are skipped, which bounds the parser's time and depth.
_MOST_CHARS = 65_536


class Code(NamedTuple):
    """What an answer holds of Python. A `program` is all of its code, which parses and does something, in a canonical
    form. "broken": the longest piece does not parse; "none": a text without code; "unknown": code of another language,
    a session of the interpreter, or code between sentences."""

    state: Literal["program", "broken", "none", "unknown"]
    program: str | None = None


class CodeJudge(Judge):
    """Applies to prompts that ask for Python code, where the reference holds some that parses. It abstains on programs
    that parse and differ, and on answers whose code may be of another language.

    Code is parsed, never run: parsing is a minimal requirement.
    """

    name = "code"
    basis = "check"

    async def judge(
        self, *, prompt: str, answer: str, reference_answer: str, response_format: dict[str, Any] | None = None
    ) -> JudgeVerdict:
        """Score 1 if both are the same program, 0 if the answer holds none or a broken one."""
        if not self.may_decide(prompt, response_format):
            return JudgeVerdict(no_worse=None, reason="the prompt does not ask for Python code")
        if max(len(answer), len(reference_answer)) > _MOST_CHARS:
            return JudgeVerdict(no_worse=None, reason=f"an answer is longer than {_MOST_CHARS} characters")
        actual, expected = code_in(answer), code_in(reference_answer)
        if expected.state != "program":
            reason = "the strongest tier's answer holds no Python that parses"
            return JudgeVerdict(no_worse=None, reason=reason, is_comparable=False)
        if actual.state == "unknown":
            return JudgeVerdict(no_worse=None, reason="the answer's code cannot be read as Python for certain")
        if actual.state != "program":
            reason = "has no code" if actual.state == "none" else "has code that does not parse"
            return JudgeVerdict(no_worse=False, score=0.0, reason=f"the answer {reason}, unlike the strongest tier's")
        if actual.program == expected.program:
            return JudgeVerdict(no_worse=True, score=1.0, reason="both answers are the same program")
        return JudgeVerdict(no_worse=None, reason="both answers are programs that parse and differ")

    def may_decide(self, prompt: str, response_format: dict[str, Any] | None) -> bool:
        if response_format is not None or not mentions(prompt.casefold(), "python", "def ", "assert ", ">>> "):
            return False
        return bool(_ASKS_FOR_CODE.search(prompt) and _PYTHON.search(prompt))


def code_in(text: str) -> Code:
    """Return the Python in `text`: in its fences of Python, else in those without a language, else all of it."""
    blocks = _FENCE.findall(text)
    pieces = [code for language, code in blocks if language.lower() in _PYTHON_FENCES]
    is_named = bool(pieces)
    if not is_named:
        unnamed = [code for language, code in blocks if not language] if blocks else [text]
        # What a program prints, or a shell's commands, are often fenced without a name.
        pieces = [piece for piece in unnamed if _LOOKS_LIKE_PYTHON.search(piece)] or unnamed
    if not pieces or any(_TRANSCRIPT.search(piece) for piece in pieces):
        return Code("unknown")
    parsed = [_parsed(piece) for piece in pieces]
    whole = [tree for tree in parsed if tree is not None]
    if len(whole) == len(parsed):
        program = _canonical([statement for tree in whole for statement in tree.body])
        if program is not None:
            return Code("program", program)
    longest, tree = max(zip(pieces, parsed, strict=True), key=lambda pair: len(pair[0]))
    if tree is None and (is_named or _is_only_python(longest)):
        return Code("broken")
    return Code("unknown" if blocks or _LOOKS_LIKE_PYTHON.search(text) else "none")


def _is_only_python(source: str) -> bool:
    return _LOOKS_LIKE_PYTHON.search(source) is not None and _SOMETHING_ELSE.search(source) is None


def _parsed(source: str) -> ast.Module | None:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", SyntaxWarning)
            return ast.parse(textwrap.dedent(source))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def _canonical(statements: list[ast.stmt]) -> str | None:
    """Return the form of a program; None for what parses and does nothing: prose such as "sorry" parses as a name."""
    if not any(not isinstance(node, ast.Expr) or isinstance(node.value, ast.Call) for node in statements):
        return None
    try:
        return ast.dump(ast.Module(body=statements, type_ignores=[]))
    except RecursionError:
        return None


_DIGITS = re.compile(r"\d+(?:[.,:]\d+)*")
_TO_THE_LETTER = re.compile(
    r"\b(?:answer|reply|respond|write|output|say|return|give)\b[^.?!\n]{0,60}\b(?:only|just|nothing else|exactly)\b"
    r"|\b(?:only|just|exactly)\b[^.?!\n]{0,30}\b(?:answer|reply|respond|write|output|say|return|repeat|copy)\b"
    r"|\b(?:repeat|copy|spell)\b[^.?!\n]{0,40}\b(?:exactly|word for word|verbatim|letters?)\b"
    r"|\bone word\b|\bsingle word\b|\byes or no\b|\btrue or false\b",
    re.IGNORECASE,
)
_TELLING = ("only", "just", "nothing else", "exactly", "repeat", "copy", "spell", "word", "yes or no", "true or false")
_CLOSED_WORDS = 40
_DECIDED = ("choice", "number", "latex", "literal", "label")  # an entity has too many names for a verdict
_UNCLEAR = {
    "choice": "an answer does not choose one of the options clearly",
    "number": "an answer gives no clear final number",
}


class ExactJudge(Judge):
    """Decides if the prompt has one correct answer and both texts state one clearly; otherwise it abstains.

    Whether it applies depends on the prompt and on both texts having an answer, not on their agreement: a judge that
    decided only on agreement would teach the classifier that open questions are always answered well.
    """

    name = "exact"
    basis = "agreement"

    async def judge(
        self, *, prompt: str, answer: str, reference_answer: str, response_format: dict[str, Any] | None = None
    ) -> JudgeVerdict:
        """Score 1 for agreement, 0 for disagreement, None for an abstention."""
        verdict = (
            self._final(prompt, answer, reference_answer)
            or self._same_words(answer, reference_answer)
            or self._to_the_letter(prompt, answer, reference_answer)
        )
        return verdict or JudgeVerdict(no_worse=None, reason="no single right answer to compare")

    def may_decide(self, prompt: str, response_format: dict[str, Any] | None) -> bool:
        """See `Judge.may_decide`; texts of equal words but for numbers, which are rare, are known afterwards alone."""
        return expected_kind(prompt) in _DECIDED or _is_to_the_letter(prompt)

    def _final(self, prompt: str, answer: str, reference: str) -> JudgeVerdict | None:
        kind = expected_kind(prompt)
        if kind not in _DECIDED:
            return None
        actual, expected = final_answer(prompt, answer), final_answer(prompt, reference)
        if actual is not None and expected is not None:
            return _compared(
                agree(actual, expected), f"{actual.kind} {actual.value}", f"{expected.kind} {expected.value}"
            )
        return JudgeVerdict(no_worse=None, reason=_UNCLEAR[kind]) if kind in _UNCLEAR else None

    def _same_words(self, answer: str, reference: str) -> JudgeVerdict | None:
        """Texts with the same words are compared by their numbers (SPEC QM-03)."""
        actual, expected = _DIGITS.findall(normalised(answer)), _DIGITS.findall(normalised(reference))
        if not actual or len(actual) != len(expected):
            return None
        if _DIGITS.sub("#", normalised(answer)) != _DIGITS.sub("#", normalised(reference)):
            return None
        return _compared(actual == expected, f"the same words with {actual}", str(expected))

    def _to_the_letter(self, prompt: str, answer: str, reference: str) -> JudgeVerdict | None:
        if not _is_to_the_letter(prompt):
            return None
        actual, expected = normalised(answer), normalised(reference)
        if not actual or not expected or max(len(actual.split()), len(expected.split())) > _CLOSED_WORDS:
            return None
        return _compared(actual == expected, repr(actual[:60]), repr(expected[:60]))


def _is_to_the_letter(prompt: str) -> bool:
    return mentions(prompt.casefold(), *_TELLING) and _TO_THE_LETTER.search(prompt) is not None


def _compared(equal: bool, actual: str, expected: str) -> JudgeVerdict:
    relation = "agrees with" if equal else "differs from"
    return JudgeVerdict(no_worse=equal, score=float(equal), reason=f"{actual} {relation} {expected}")


Embed = Callable[[str], Awaitable[NDArray[np.float32]]]

_WORD = re.compile(r"[^\W\d_]+|\d+(?:[.,:]\d+)*")


class SimilarityJudge(Judge):
    """Cosine of two embeddings, or of word and letter-trigram counts without an encoder; a signal (SPEC QM-03).

    Embeddings hardly represent numbers, so texts with different numbers score 0.
    """

    name = "similarity"

    def __init__(self, embed: Embed | None = None, threshold: float = 0.85) -> None:
        self._embed = embed
        self.threshold = threshold

    async def judge(
        self, *, prompt: str, answer: str, reference_answer: str, response_format: dict[str, Any] | None = None
    ) -> JudgeVerdict:
        """Abstain; `score` is the similarity in [0, 1], None where an answer is empty."""
        if not answer.strip() or not reference_answer.strip():
            return JudgeVerdict(no_worse=None, reason="an answer is empty")
        if _numbers(answer) != _numbers(reference_answer):
            return JudgeVerdict(no_worse=None, score=0.0, reason="the answers hold different numbers")
        similarity = await self._similarity(answer, reference_answer)
        relation = "at least" if similarity >= self.threshold else "below"
        return JudgeVerdict(
            no_worse=None,
            score=similarity,
            reason=f"similarity {similarity:.3f} is {relation} {self.threshold}: a signal, no label",
        )

    def may_decide(self, prompt: str, response_format: dict[str, Any] | None) -> bool:
        """Never."""
        return False

    async def _similarity(self, answer: str, reference: str) -> float:
        if self._embed is None:
            return _cosine_of_counts(_terms(answer), _terms(reference))
        a, b = [(await self._embed(text)).astype(np.float64) for text in (answer, reference)]
        norm = float(np.linalg.norm(a) * np.linalg.norm(b))
        return max(0.0, float(a @ b) / norm) if norm > 0 else 0.0


def _numbers(text: str) -> Counter[str]:
    return Counter(word for word in _WORD.findall(normalised(text)) if word[0].isdigit())


def _terms(text: str) -> Counter[str]:
    words = _WORD.findall(normalised(text))
    trigrams = (f"^{word}$"[i : i + 3] for word in words for i in range(len(word)))
    return Counter(words) + Counter(trigrams)


def _cosine_of_counts(a: Counter[str], b: Counter[str]) -> float:
    norm = sqrt(sum(n * n for n in a.values()) * sum(n * n for n in b.values()))
    return sum(n * b[term] for term, n in a.items()) / norm if norm else 0.0
