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
    IN_BRACKETS,
    INTERNATIONAL,
    MOBILE,
    NATIONAL,
    PLAIN_NATIONAL,
    SPACED_CARD,
    is_card,
    is_iban,
    is_international,
    is_named_phone,
    is_national,
    is_spaced_card,
)
from gateway.inference.screening.readings import readings
from gateway.inference.screening.secret_forms import (
    KEYS_OF_MAKERS,
    LONG_WORD,
    NAMED_SECRETS,
    PASSWORDS,
    PRIVATE_KEY_BODIES,
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
    # "ada [at] example [dot] com"
    Form(
        re.compile(
            r"[\[({<] ?(?:at|@) ?[\])}>] ?[\w-]{1,63}(?: ?(?:[\[({<] ?(?:dot|\.) ?[\])}>]|\.) ?[\w-]{2,63}){1,4}",
            re.IGNORECASE,
        ),
        tuple(f"{word}{end}" for word in ("at", "AT", "At", "@") for end in ("]", ")", "}", ">", " ]", " )")),
    ),
    Form(re.compile(r"@(?<=[\w.%+\-\"]@)\[(?:\d{1,3}\.){3}\d{1,3}\]"), ("@[",)),
)


def _of_plain(check: Check) -> Callable[[re.Match[str]], bool]:
    return lambda found: check(plain(found[0]))


_OF_TEXTS: dict[RuleName, Forms] = {
    "email": _EMAILS,
    "card": (Form(SPACED_CARD, check=is_spaced_card),),
    "api-key": PASSWORDS,
    "private-key": PRIVATE_KEYS,
}
# Of texts with a long word, and of long words and what is before them.
_OF_LONG_WORDS: dict[RuleName, Forms] = {"api-key": KEYS_OF_MAKERS, "private-key": PRIVATE_KEY_BODIES}
_OF_NAMED_WORDS: dict[RuleName, Forms] = {"api-key": NAMED_SECRETS}
_OF_NUMBERS: dict[RuleName, Forms] = {
    "phone": (
        *(Form(pattern, check=is_international) for pattern in INTERNATIONAL),
        Form(AMERICAN),
        Form(IN_BRACKETS),
        Form(NATIONAL, check=is_national),
        Form(PLAIN_NATIONAL, check=is_national),
        Form(MOBILE, check=is_national),
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
        self._of_texts, self._of_numbers = _chosen(spec, _OF_TEXTS), _chosen(spec, _OF_NUMBERS)
        self._of_long, self._of_named = _chosen(spec, _OF_LONG_WORDS), _chosen(spec, _OF_NAMED_WORDS)

    def first(self, text: str) -> str | None:
        """The name of the first rule that finds something in a reading of `text`; None if none does. Takes about as
        long as 5 to 20 characters a microsecond."""
        return self.first_of([text])

    def first_of(self, texts: Sequence[str]) -> str | None:
        """The same of several texts that stand apart, which is faster than one after another."""
        if self._own:
            # The catalogue's patterns may say that a text begins or ends there, and how it is written.
            for text in texts:
                for window in _windows(text):
                    if found := next(
                        filter(None, (_first(self._own, one) for one in (window, *readings(window)))), None
                    ):
                        return found
        for window in _windows(_APART.join(texts)):
            written, *others = readings(window)
            for reading in (written, joined_lines(written), *others):
                if reading and (found := self._found(reading)):
                    return found
        return None

    def _found(self, text: str) -> str | None:
        found = _first(self._of_texts, text)
        if found is None and self._of_long and len(max(words := text.split(), key=len, default="")) >= LONG_WORD:
            found = _first(self._of_long, text)
            if found is None and any(form.may_be_in(text) for _, forms in self._of_named for form in forms):
                found = _first(self._of_named, _long_words(words))
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


def _long_words(words: list[str]) -> str:
    """The words that are as long as secrets, a line each, after the words before them."""
    lines: list[str] = []
    read = 0
    for place, word in enumerate(words):
        if len(word) >= LONG_WORD:
            begin = place - _WORDS_BEFORE
            # Words are read once: after those of the line before, they are of the same line.
            lines += [" " if begin <= read else "\n", " ".join(words[max(begin, read) : place + 1])]
            read = place + 1
    return "".join(lines)


def _first(rules: Named, text: str) -> str | None:
    for name, forms in rules:
        if any(form.is_in(text) for form in forms):
            return name
    return None
