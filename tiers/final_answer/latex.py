"""Mathematical results in LaTeX, or in the notation of programs, without their layout."""

import re

from tiers.final_answer.marks import balanced
from tiers.final_answer.text import word_set

MOST_CHARS = 300
_LAYOUT = re.compile(
    r"\\(?:left|right|displaystyle|textstyle|bigl|bigr|Bigl|Bigr|big|Big|limits|quad|qquad)(?![a-zA-Z])"
    r"|\\[,;:! ]|~|\\\\|\$|\\[()\[\]]"
)
_FONT = re.compile(r"\\(?:text|textbf|mathrm|mathbf|mathit|mbox|operatorname|boldsymbol)\s?\{([^{}]{0,80})\}")
_FRACTION = re.compile(r"\\[dtc]?frac(?![a-zA-Z])\s?")
_SHORT_FRACTION = re.compile(r"\\frac(\d)(\d)(?!\d)")
_WHOLE_FRACTION = re.compile(r"\\frac\{(-?[A-Za-z0-9]{1,20})\}\{([A-Za-z0-9]{1,20})\}")
_PREFIX = re.compile(r"(?:[A-Za-z]|[a-z]\([a-z]\))=(?=[^=]+$)")
_FUNCTIONS = word_set(
    "sin cos tan log exp sqrt frac left right text infty pi theta alpha beta gamma lambda arcsin arctan"
)


def normalised_latex(text: str) -> str | None:
    """Return a formula without layout, spaces and its `x =`; None for prose, for an empty or a long text."""
    text = text.strip().rstrip(".,; ")
    if not text or len(text) > MOST_CHARS or not _is_formula(text):
        return None
    text = _FONT.sub(r"\1", text.replace("−", "-").replace("{,}", ","))
    text = _LAYOUT.sub("", text)
    text = _FRACTION.sub(r"\\frac", text)
    text = _SHORT_FRACTION.sub(r"\\frac{\1}{\2}", text)
    text = re.sub(r"\s", "", text)
    text = text.replace("**", "^").replace("\\cdot", "*").replace("\\times", "*").replace("×", "*").replace("·", "*")
    text = re.sub(r"\\(?:leq?|leqslant)(?![a-z])", "<=", re.sub(r"\\(?:geq?|geqslant)(?![a-z])", ">=", text))
    text = re.sub(r"\^\{?\\circ\}?|°", "", text).replace("\\%", "%").replace("\\pi", "π").replace("\\infty", "∞")
    text = re.sub(r"\\sqrt(\w)", r"\\sqrt{\1}", text)
    text = re.sub(r"([\^_])\{([\w])\}", r"\1\2", text)
    text = _WHOLE_FRACTION.sub(r"\1/\2", text)
    text = re.sub(r"(?<=[\w)])\*(?=[A-Za-z(\\π])", "", text)
    while text.startswith("{") and balanced(text, 1) == text[1:-1]:
        text = text[1:-1]
    return _PREFIX.sub("", text, count=1) if _PREFIX.match(text) else text or None


def last_formula(text: str) -> str | None:
    """Return the only formula between dollars or brackets on the last line of `text`."""
    line = text.strip().rsplit("\n", 1)[-1][-600:]
    found = re.findall(r"\$\$?([^$]{1,300})\$\$?|\\\(([^\n]{1,300}?)\\\)|\\\[([^\n]{1,300}?)\\\]", line)
    return next(part for part in found[0] if part) if len(found) == 1 and any(found[0]) else None


def _is_formula(text: str) -> bool:
    """Whether `text` has no words but those of functions."""
    plain = _FONT.sub(" ", text)
    words = [word for word in re.findall(r"[^\W\d_]{3,}", plain) if word.lower() not in _FUNCTIONS]
    commands = len(re.findall(r"\\[A-Za-z]{3,}", plain))
    return len(words) <= commands and re.search(r"[\d\\^*/=+<>(-]|^[A-Za-z]$", text) is not None
