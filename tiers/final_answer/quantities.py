"""Numbers with their units: what a text gives as its result, and which prompts ask for one.

Mathematical results in LaTeX, or in the notation of programs, are read without their layout.
"""

import re
from fractions import Fraction
from typing import NamedTuple

from tiers.final_answer.text import balanced, clean, is_short, marks, mentions, negates, word_set

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
    formulas = re.findall(r"\$\$?([^$]{1,300})\$\$?|\\\(([^\n]{1,300}?)\\\)|\\\[([^\n]{1,300}?)\\\]", line)
    return next(part for part in formulas[0] if part) if len(formulas) == 1 and any(formulas[0]) else None


def _is_formula(text: str) -> bool:
    """Whether `text` is one formula, with no words but those of functions."""
    if any(re.search(r"[^\W\d_]{3,}", words) for words in _FONT.findall(text)) or re.search(r"\b(?:or|and|to)\b", text):
        return False
    plain = _FONT.sub(" ", text)
    words = [word for word in re.findall(r"[^\W\d_]{3,}", plain) if word.lower() not in _FUNCTIONS]
    commands = len(re.findall(r"\\[A-Za-z]{3,}", plain))
    return len(words) <= commands and re.search(r"[\d\\^*/=+<>(-]|^[A-Za-z]$", text) is not None


_NUMBER = r"[-+]?(?:\d{1,3}(?:,\d{3})+(?!\d)|\d+)(?:\.\d+)?(?:[eE][-+]?\d{1,3})?(?:/[1-9]\d*)?|[-+]?\.\d+"
# The guards exclude digits within words, times and dates: 17:40, v2, 2024-05-01 and 3/4/24 are not numbers.
_STANDALONE = re.compile(rf"(?<![\w.,:/^])(?<![\d)]-)({_NUMBER})(?![\w:/])(?!-\d)(?!,\d)(?!\.\d)")
_QUANTITY = re.compile(
    r"(?:[a-z](?:\([a-z]\))?\s?=\s?|(?:approximately|approx\.|about|roughly|around|exactly|only|~|≈|=)\s?)?"
    r"(?P<minus>minus\s|negative\s|-(?=\s?[$€£¥]))?\s?(?P<currency>(?:US|C|A)?[$€£¥])?\s?"
    rf"(?:(?P<whole>\d{{1,9}})\s(?P<part>\d{{1,9}}/[1-9]\d{{0,8}})|(?P<number>{_NUMBER}))"
    r"(?:\s?[×x*]\s?10\s?(?:\^|\*\*)\s?[{(]?(?P<power>[-+]?\d{1,3})[})]?)?(?![\d/:])(?!,\d)(?!\.\d)"
    r"(?:\s?(?P<scale>thousand|million|billion|trillion|hundred|dozen)\b)?"
    r"(?:\s?(?P<percent>%|percent\b|per\scent\b))?"
    r"(?:\s?(?P<unit>[^\W\d_]{1,20}(?:[²³]|\^\{?[23]\}?)?(?:/[^\W\d_]{1,12})?|°\s?[CF]?\b|°)(?![\w]))?"
    r"(?:\sper\s(?P<per>[^\W\d_]{1,12}))?",
    re.IGNORECASE,
)
# What may not follow a number that is alone: another number after at most a word, or an operator.
_CONTINUED = re.compile(r"\s?(?:(?:or|to|and|by|but|x|through|plus|minus|times)\b|[-+*/^×÷±<>=√])?\s?[$€£]?\(?\d", re.I)
_OPERATOR = re.compile(r"\s?(?:[+*/^×÷±√\\{]|-\s?\w|(?:and|or)\s(?:a|one|half)\b)")
_BARE_END = re.compile(r"(?:\s[^\W\d_]{1,20}){0,3}[.!)\s]*")

_SCALES = {"dozen": 12, "hundred": 100, "thousand": 10**3, "million": 10**6, "billion": 10**9, "trillion": 10**12}
_UNIT_WORDS = {
    "km": "kilometer kilometers kilometre kilometres kms",
    "m": "meter meters metre metres",
    "cm": "centimeter centimeters centimetre centimetres",
    "mm": "millimeter millimeters millimetre millimetres",
    "mile": "miles mi",
    "foot": "feet ft",
    "inch": "inches",
    "yard": "yards yd yds",
    "kg": "kilogram kilograms kgs",
    "g": "gram grams",
    "mg": "milligram milligrams",
    "pound": "pounds lb lbs",
    "ounce": "ounces oz",
    "ton": "tons tonne tonnes",
    "l": "liter liters litre litres",
    "ml": "milliliter milliliters millilitre millilitres",
    "gallon": "gallons gal",
    "s": "second seconds sec secs",
    "min": "minute minutes mins",
    "h": "hour hours hr hrs",
    "day": "days",
    "week": "weeks",
    "month": "months",
    "year": "years yr yrs",
    "$": "dollar dollars usd us$",
    "cent": "cents",
    "€": "euro euros eur",
    "°": "degree degrees",
    "k": "kelvin kelvins",
    "mile/h": "mph",
    "km/h": "kph kmh",
}
_UNITS = {word: unit for unit, words in _UNIT_WORDS.items() for word in (unit, *words.split())}
_LETTER_UNITS = frozenset("mglshKLVNJWACT")
_SHORT_WORDS = word_set("in of is at as on if to or by so it we")
_SMALL = (
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen "
    "seventeen eighteen nineteen twenty"
)
_WORDS = {word: number for number, word in enumerate(_SMALL.split())}

_COUNTED = re.compile(
    r"\bhow\s+(?:many|much|old|far|long|tall|fast|heavy)\b|\bwhat\s+(?:number|percentage|fraction)\b", re.IGNORECASE
)
_MEASURED = re.compile(
    r"\bwhat\s+is\s+the\s+(?:\w+\s+)?(?:total|sum|product|difference|quotient|remainder|average|mean|number|value|"
    r"probability|percentage|area|volume|perimeter|speed|cost|price)\b|\bwhich\s+(?:number|value)\b"
    r"|\b(?:calculate|compute|count)\s+(?:the|how)\b",
    re.IGNORECASE,
)
_COMPUTED = re.compile(
    r"\b(?:calculate|compute|evaluate|solve|add|subtract|multiply|divide|sum|product|difference|remainder|quotient"
    r"|total|what is|what's|plus|minus|times)\b|=\s{0,9}\??\s{0,9}$",
    re.IGNORECASE,
)
_ARITHMETIC = re.compile(r"\d\s*(?:[-+*/×÷^]|\bplus\b|\bminus\b|\btimes\b|\bdivided by\b)\s*\(?-?\d", re.IGNORECASE)
_NUMBER_ALONE = re.compile(
    r"\b(?:only|just|single|with)\s+(?:a|the|one)?\s*(?:number|integer|digit)\b|\bthe number only\b", re.IGNORECASE
)
MAX_NUMBER_CHARS = 100  # longer numbers are useless, and Python refuses to format some thousand digits


class Quantity(NamedTuple):
    """A number and its unit; no unit: none was given, or a noun that counts things."""

    number: Fraction
    unit: str = ""


def asks_for_number(prompt: str) -> bool:
    """Return whether the right answer to `prompt` is one quantity."""
    folded = prompt.casefold()
    alone = mentions(folded, "only", "just", "single", "with") and mentions(folded, "number", "integer", "digit")
    if alone and _NUMBER_ALONE.search(prompt):
        return True
    asks = mentions(folded, "what", "which", "calculate", "compute", "count", "how")
    if asks and (measured := _MEASURED.search(prompt)):
        # The difference between two protocols is no number.
        return "difference" not in measured[0].lower() or any(character.isdigit() for character in prompt)
    if _ARITHMETIC.search(prompt) and _COMPUTED.search(prompt):
        return True
    if not asks:
        return False
    is_question = is_short(prompt) or prompt.rstrip().endswith("?") or any(c.isdigit() for c in prompt)
    return is_question and _COUNTED.search(prompt) is not None


def numbers(text: str) -> list[Fraction]:
    """Return every free-standing number in `text`, in order."""
    return [value for match in _STANDALONE.findall(clean(text)) if (value := _value(match)) is not None]


def quantity(text: str, *, whole: bool = False, percent_is_share: bool = False) -> Quantity | None:
    """Return the quantity that `text` starts with; None if another number or an operator follows it.

    `whole`: only a unit of up to four words may follow. `percent_is_share`: 50% is 1/2, else 50.
    """
    text = _plain(text)
    if len(text) <= 12 and (word := text.casefold().rstrip(".! ")) in _WORDS:
        return Quantity(Fraction(_WORDS[word]))
    match = _QUANTITY.match(text)
    if match is None:
        return None
    rest = text[match.end() :]
    if (
        re.match(r"\w", rest)
        or _CONTINUED.match(rest)
        or _OPERATOR.match(rest)
        or (whole and _BARE_END.fullmatch(rest) is None)
    ):
        return None
    unit = match["unit"] or ""
    if unit.isalpha() and text[match.start("unit") - 1].isdigit() and unit.casefold() not in _UNITS:
        return None  # digits of another base, a code
    number = _value(match["number"]) if match["whole"] is None else Fraction(match["whole"]) + Fraction(match["part"])
    if number is None:
        return None
    if match["power"]:
        power = int(match["power"])
        number *= Fraction(10**power) if power >= 0 else Fraction(1, 10**-power)
    number *= _SCALES.get((match["scale"] or "").lower(), 1)
    if match["percent"] and percent_is_share:
        number /= 100
    measure = _unit(match["currency"], match["unit"], match["per"])
    return None if measure is None else Quantity(-number if match["minus"] else number, measure)


def final_quantity(text: str, *, percent_is_share: bool = False) -> Quantity | None:
    """Return the quantity that `text` gives as its answer, or None if it gives none clearly.

    In this order: the last marked one (`#### 7`, `\\boxed{7}`, "the answer is 7"); a text or last line that is only a
    number with a unit; the value after the last "="; the only number of the last sentence that has any.
    """
    for mark in marks(text):
        answer = quantity(mark.content, percent_is_share=percent_is_share)
        if answer is not None:
            return answer
        if mark.strict:
            return None
    text = "\n".join(line for part in text.strip().splitlines() if (line := clean(part)))
    if not text:
        return None
    for part in (text, text.splitlines()[-1]):
        if bare := quantity(part, whole=True, percent_is_share=percent_is_share):
            return bare
    if equals := re.search(r"=\s*([^=\n]{1,60})$", text):
        answer = quantity(equals[1], percent_is_share=percent_is_share)
        if answer is not None and len(set(numbers(equals[1]))) <= 1:
            return answer
    for sentence in reversed(re.split(r"(?<=[.!?])\s+|\n", text)):
        matches = list(_STANDALONE.finditer(sentence))
        if matches:
            alone = len({_value(match[1]) for match in matches}) == 1 and not negates(sentence)
            return _at(sentence, matches[-1].start(), percent_is_share) if alone else None
    return None


def final_number(text: str) -> Fraction | None:
    """Return the number of `final_quantity`, whatever its unit; 50% is 50."""
    answer = final_quantity(text)
    return None if answer is None else answer.number


def likely_number(text: str) -> Fraction | None:
    """Return `final_number`, else the last number of `text`: good enough for voting, not for judging."""
    clear = final_number(text)
    return clear if clear is not None else next(reversed(numbers(text)), None)


def _at(sentence: str, position: int, percent_is_share: bool) -> Quantity | None:
    before = sentence[:position].rstrip()
    start = len(before) - 1 if before.endswith(("$", "€", "£", "¥")) else position
    return quantity(sentence[start:], percent_is_share=percent_is_share)


def _plain(text: str) -> str:
    """Return `text` with the LaTeX of numbers in plain characters."""
    text = text[:400]
    text = re.sub(r"\\[dt]?frac\s?\{?(-?\d{1,20})\}?\s?\{?(\d{1,20})\}?", r" \1/\2", text)
    text = re.sub(r"\\(?:text|mathrm|mbox|textbf|mathbf)\s?\{([^{}]{0,60})\}", r" \1", text)
    text = text.replace("{,}", ",").replace("\\%", "%").replace("\\times", "×").replace("\\cdot", "×")
    text = re.sub(r"\^\s?\{?\\circ\}?", "°", text)
    text = re.sub(r"\\[,!;: ]|\\left|\\right|~", " ", text)
    text = clean(text).replace("\\$", "$")
    text = re.sub(r"^\$([^$]{1,100})\$(?!\d)", r"\1", text)
    text = text.removeprefix("\\(").removeprefix("\\[").removesuffix("\\)").removesuffix("\\]").strip()
    return re.sub(r"(?<=\d) (?=\d{3}\b)(?!\d{3}/)", "", text) if re.match(r"[-+]?\d{1,3}(?: \d{3})+\b", text) else text


def _unit(currency: str | None, unit: str | None, per: str | None) -> str | None:
    """Return the unit in one spelling, "" for a noun that counts things, None for a mixture."""
    sign = "" if currency is None else _UNITS.get(currency.casefold(), currency.casefold())
    name = "" if unit is None else _unit_name(unit)
    if name is None or (sign and name not in ("", sign)):
        return None
    base = sign or name
    return f"{base}/{_unit_name(per) or per.casefold()}" if base and per else base


def _unit_name(unit: str) -> str | None:
    if len(unit) == 1 and unit.isalpha() and unit not in _LETTER_UNITS:
        return None  # a variable, or k for thousand
    folded = unit.casefold().replace(" ", "").replace("²", "^2").replace("³", "^3").replace("{", "").replace("}", "")
    if folded in _UNITS:
        return _UNITS[folded]
    above, slash, below = folded.partition("/")
    if slash:
        return f"{_UNITS.get(above, above)}/{_UNITS.get(below, below)}"
    base, power, _ = folded.partition("^")
    if power:
        return folded if base in _UNITS else None  # else a power of a variable
    is_word = unit.isalpha() and unit.islower() and (len(unit) >= 3 or unit in _SHORT_WORDS)
    return "" if is_word else unit


def _value(number: str) -> Fraction | None:
    if len(number) > MAX_NUMBER_CHARS:
        return None
    above, _, below = number.replace(",", "").partition("/")
    return Fraction(above) / Fraction(below or "1")
