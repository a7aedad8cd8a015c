"""Features of a multiple-choice question (RT-02): how its options differ, and what the stem asks."""

import math
import re
from typing import Any

import numpy as np
import numpy.typing as npt

from classifier.features.character_counts import KIND_TABLE, CharacterCounts, count_characters
from classifier.native import KERNELS

# On UTF-8, because a turn's bytes are available. A word is a run of letters, digits and bytes beyond ASCII: letters are
# lower-cased, every digit is "0", so that a number is known by its length.
_WORD_TABLE = bytearray(range(256))
for _byte in range(128):
    _mark = chr(_byte)
    _WORD_TABLE[_byte] = ord(_mark.lower() if _mark.isalpha() else "0" if _mark.isdigit() else " ")
WORD_TABLE = bytes(_WORD_TABLE)
LONG_WORD = 8  # bytes; longer words count as long
NEGATIONS = "not except least incorrect false never cannot no neither nor without unless wrong untrue"
_NEGATIONS = frozenset(NEGATIONS.encode().split())
_OPTION = re.compile(rb"\n\(?[A-J][.):] ")
_SENTENCE_END = re.compile(rb"[.?!\n]\s+")
_STOP = re.compile(rb"[.?!](?=\s|\Z)")
_NUMBER = re.compile(rb"[0-9]+")
_DECIMAL = re.compile(rb"[0-9]\.[0-9]")

OPTION_FEATURE_NAMES: tuple[str, ...] = (
    "option_log_words",
    "option_log_most_words",
    "option_length_spread",
    "option_share",
    "option_distinct_words",
    "option_common_words",
    "option_word_length",
    "option_long_words",
    "options_with_digits",
    "options_of_numbers",
    "option_digits",
    "options_negated",
    "option_first_words",
    "option_last_words",
    "option_capitals",
    "option_symbols",
    "option_words_in_stem",
    "stem_log_words",
    "question_log_words",
    "question_which",
    "stem_numbers",
    "stem_decimals",
    "stem_sentences",
    "stem_capitals",
    "stem_long_words",
)


def option_features(utf8: bytes) -> npt.NDArray[np.float32]:
    """Return float32 [len(OPTION_FEATURE_NAMES)] for a turn in UTF-8; without options all of it is the stem.

    An option starts on its own line with its letter, as in "A. " or "(B) ", and ends where the next one starts. Counts
    are log1p, shares are per option, per word or per byte; "question" is the stem's last sentence.
    """
    stem, options = _parted(utf8)
    return np.array([*_of_options(options, stem, max(len(utf8), 1)), *_of_stem(stem)], np.float32)


def _parted(utf8: bytes) -> tuple[bytes, list[bytes]]:
    """Split a turn into the stem and the options."""
    marks = [*_OPTION.finditer(utf8)]
    ends = [*(m.start() for m in marks), len(utf8)]
    return utf8[: ends[0]], [utf8[mark.end() : end] for mark, end in zip(marks, ends[1:], strict=True)]


def _of_options(options: list[bytes], stem: bytes, size: int) -> list[float]:
    """Return the features of the options; all 0 without any."""
    words = [option.translate(WORD_TABLE).split() for option in options]
    distinct = [set(w) for w in words]
    every = [word for w in words for word in w]
    union, common = set().union(*distinct), set.intersection(*distinct) if distinct else set()
    asked = set(stem.translate(WORD_TABLE).split())
    lengths = [len(option) for option in options]
    n, length, total = max(len(options), 1), sum(lengths), max(len(every), 1)
    has, different = count_characters(b"".join(options)), max(sum(map(len, distinct)), 1)
    return [
        math.log1p(len(every) / n),
        math.log1p(max(map(len, words), default=0)),
        # Their standard deviation, relative to their mean plus one byte.
        math.sqrt(n * sum(x * x for x in lengths) - length * length) / (length + n),
        length / size,
        len(union) / different,
        len(common) / max(len(union), 1),
        sum(map(len, every)) / total,
        _long(every) / total,
        sum(any(b"0" in word for word in w) for w in words) / n,
        sum(bool(w) and all(not word.strip(b"0") for word in w) for w in words) / n,
        has.digits / max(length, 1),
        sum(not _NEGATIONS.isdisjoint(w) for w in distinct) / n,
        len({w[0] for w in words if w}) / n,
        len({w[-1] for w in words if w}) / n,
        has.capitals / max(length, 1),
        _symbols(has) / max(length, 1),
        sum(len(w & asked) for w in distinct) / different,
    ]


def _of_stem(stem: bytes) -> list[float]:
    words = stem.translate(WORD_TABLE).split()
    question = _SENTENCE_END.split(stem.strip())[-1].translate(WORD_TABLE).split()
    return [
        math.log1p(len(words)),
        math.log1p(len(question)),
        float(b"which" in question),
        math.log1p(len(_NUMBER.findall(stem))),
        math.log1p(len(_DECIMAL.findall(stem))),
        math.log1p(len(_STOP.findall(stem))),
        count_characters(stem).capitals / max(len(stem), 1),
        _long(words) / max(len(words), 1),
    ]


def _long(words: list[bytes]) -> int:
    return sum(len(word) > LONG_WORD for word in words)


def _symbols(has: CharacterCounts) -> int:
    """Count the characters of formulas."""
    return has.dollars + has.other_maths + has.brackets + has.backslashes


# For the kernel of the surface features, which writes these too.
NATIVE: Any = None if KERNELS is None else KERNELS.make_options(WORD_TABLE, KIND_TABLE, NEGATIONS.encode())
