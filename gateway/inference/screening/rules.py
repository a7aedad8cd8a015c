"""The rules by which a text is private: patterns with check digits where there are any, and the catalogue's own.

A rule tells its name and never what it found.
"""

import re
from collections.abc import Callable, Iterator, Sequence

from gateway.inference.screening.line_breaks import joined_lines
from gateway.inference.screening.national_ids import NATIONAL_IDS, Check, plain
from gateway.inference.screening.number_forms import (
    AMERICAN,
    CARD,
    DIGITS,
    IBAN,
    INTERNATIONAL,
    NATIONAL,
    is_card,
    is_iban,
    is_international,
    is_named_phone,
    is_national,
)
from gateway.inference.screening.readings import readings
from gateway.inference.screening.secret_forms import (
    KEYS_OF_MAKERS,
    LONG_WORD,
    NAMED_SECRETS,
    OTHER_SECRETS,
    PRIVATE_KEYS,
    Form,
)
from tiers.catalog.screening_spec import PrivateSpec, RuleName

Forms = tuple[Form, ...]
Named = list[tuple[str, Forms]]

WINDOW, OVERLAP = 1 << 15, 512
"""Characters that are searched at a time, so that other threads have their turns between, and those of them that the
next window searches again: a longer match may be missed where it crosses a border."""

_EMAILS = (
    Form(
        re.compile(
            r"@(?<=[\w.%+\-\"]@)(?<!\bgit@)(?:[\w-]{1,63}\.){1,8}(?:[^\W\d_]{2,24}|xn--[a-z0-9]{2,59})(?![\w-])"
        ),
        ("@",),
    ),
    Form(re.compile(r"@(?<=[\w.%+\-\"]@)\[(?:\d{1,3}\.){3}\d{1,3}\]"), ("@[",)),
)


def _of_plain(check: Check) -> Callable[[re.Match[str]], bool]:
    return lambda found: check(plain(found[0]))


_OF_TEXTS: dict[RuleName, Forms] = {
    "email": _EMAILS,
    "api-key": (*KEYS_OF_MAKERS, *OTHER_SECRETS),
    "private-key": PRIVATE_KEYS,
}
_OF_WORDS: dict[RuleName, Forms] = {"api-key": NAMED_SECRETS}
_OF_NUMBERS: dict[RuleName, Forms] = {
    "phone": (
        *(Form(pattern, check=is_international) for pattern in INTERNATIONAL),
        Form(AMERICAN),
        Form(NATIONAL, check=is_national),
        Form(DIGITS, check=is_named_phone),
    ),
    "card": (Form(CARD, check=is_card),),
    "iban": (Form(IBAN, check=is_iban),),
    "national-id": tuple(Form(pattern, check=_of_plain(check)) for pattern, check in NATIONAL_IDS),
}
# Six digits, two of them without anything between, with at most twelve other characters between two: every rule of
# numbers finds something there, or nowhere. Texts have few of them, so that these rules, which are slow, read little.
_NUMBERS = re.compile(r"[0-9]{2}(?:[^0-9]{0,12}[0-9]){4,}")
_AROUND = 48
# Between texts that stand apart: nothing that a rule finds goes on over it, and a name is near its value.
_APART = " ;; "
# Before a long word: so many words say what it is.
_WORDS_BEFORE = 6


class PrivateRules:
    """The rules of a catalogue, compiled."""

    def __init__(self, spec: PrivateSpec) -> None:
        self._own: Named = [(name, (Form(re.compile(pattern)),)) for name, pattern in spec.patterns.items()]
        self._of_texts, self._of_words = _chosen(spec, _OF_TEXTS), _chosen(spec, _OF_WORDS)
        self._of_numbers = _chosen(spec, _OF_NUMBERS)

    def first(self, text: str) -> str | None:
        """The name of the first rule that finds something in a reading of `text`; None if none does. Takes about as
        long as 10 characters a microsecond."""
        for window in _windows(text):
            read = readings(window)
            if found := _first(self._own, window):
                return found
            for place, reading in enumerate(read):
                if found := (reading != window and _first(self._own, reading)) or self._found(reading):
                    return found
                if not place and (joined := joined_lines(reading)) and (found := self._found(joined)):
                    return found
        return None

    def first_of(self, texts: Sequence[str]) -> str | None:
        """The same of several texts that stand apart, which is faster than one after another."""
        if self._own:
            # The catalogue's patterns may say that a text begins or ends there.
            return next(filter(None, map(self.first, texts)), None)
        return self.first(_APART.join(texts)) if texts else None

    def _found(self, text: str) -> str | None:
        found = _first(self._of_texts, text)
        if found is None and any(form.may_be_in(text) for _, forms in self._of_words for form in forms):
            found = _first(self._of_words, _long_words(text))
        if found is None and self._of_numbers and (numbers := _numbers(text)):
            found = _first(self._of_numbers, numbers)
        return found


def _chosen(spec: PrivateSpec, forms: dict[RuleName, Forms]) -> Named:
    return [(name, forms[name]) for name in spec.rules if name in forms]


def _windows(text: str) -> Iterator[str]:
    for start in range(0, max(len(text) - OVERLAP, 1), WINDOW - OVERLAP):
        yield text[start : start + WINDOW]


def _numbers(text: str) -> str:
    """The parts of `text` with numbers, a line each; a line between two parts joins them no more than the text did."""
    spans = (found.span() for found in _NUMBERS.finditer(text))
    return "\n\n".join(text[max(start - _AROUND, 0) : end + _AROUND] for start, end in spans)


def _long_words(text: str) -> str:
    """The words of `text` that are as long as secrets, a line each, after the words before them."""
    words = text.split()
    places = [place for place, word in enumerate(words) if len(word) >= LONG_WORD]
    if len(places) * _WORDS_BEFORE > len(words):
        return text
    return "\n\n".join(" ".join(words[max(place - _WORDS_BEFORE, 0) : place + 1]) for place in places)


def _first(rules: Named, text: str) -> str | None:
    for name, forms in rules:
        if any(form.is_in(text) for form in forms):
            return name
    return None
