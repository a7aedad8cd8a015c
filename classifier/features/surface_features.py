"""Surface features of a turn (RT-02): counts that describe the kind of question, named for explanations.

The characters of a text are counted by kind in one pass over its bytes. Of a multiple-choice question: how its options
differ, and what the stem asks.
"""

import math
import re
import string
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from classifier.features.stray_text import Marks
from classifier.native import KERNELS


class CharacterCounts(NamedTuple):
    """Bytes of a UTF-8 text by kind; every byte has one kind, and those beyond ASCII are `non_ascii`."""

    others: int
    questions: int
    exclamations: int
    line_breaks: int
    other_space: int
    dollars: int
    other_maths: int
    brackets: int
    digits: int
    quotes: int
    backslashes: int
    commas: int
    capitals: int
    non_ascii: int


_BYTES_OF: dict[str, bytes] = {
    "questions": b"?",
    "exclamations": b"!",
    "line_breaks": b"\n",
    "other_space": string.whitespace.replace("\n", "").encode(),
    "dollars": b"$",
    "other_maths": b"=+*/^<>%",
    "brackets": b"()[]{};",
    "digits": string.digits.encode(),
    "quotes": b"\"'`",
    "backslashes": b"\\",
    "commas": b",",
    "capitals": string.ascii_uppercase.encode(),
    "non_ascii": bytes(range(128, 256)),
}
_NUM_KINDS = len(CharacterCounts._fields)
_KIND_OF = bytearray(256)
for _name, _bytes in _BYTES_OF.items():
    for _char_byte in _bytes:
        _KIND_OF[_char_byte] = CharacterCounts._fields.index(_name)
KIND_TABLE = bytes(_KIND_OF)


def count_characters(utf8: bytes) -> CharacterCounts:
    """Count the characters of a UTF-8 text."""
    kinds = np.frombuffer(utf8.translate(KIND_TABLE), np.uint8)
    return CharacterCounts(*np.bincount(kinds, minlength=_NUM_KINDS).tolist())


# On UTF-8, because a turn's bytes are available. A word is a run of letters, digits and bytes beyond ASCII: letters are
# lower-cased, every digit is "0", so that a number is known by its length.
_WORD_TABLE = bytearray(range(256))
for _stem_byte in range(128):
    _mark = chr(_stem_byte)
    _WORD_TABLE[_stem_byte] = ord(_mark.lower() if _mark.isalpha() else "0" if _mark.isdigit() else " ")
WORD_TABLE = bytes(_WORD_TABLE)
LONG_WORD = 8  # bytes; longer words count as long
NEGATIONS = "not except least incorrect false never cannot no neither nor without unless wrong untrue"
_NEGATIONS = frozenset(NEGATIONS.encode().split())
_OPTION_BYTES = re.compile(rb"\n\(?[A-J][.):] ")
_SENTENCE_END = re.compile(rb"[.?!\n]\s+")
_STOP = re.compile(rb"[.?!](?=\s|\Z)")
_INTEGER = re.compile(rb"[0-9]+")
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
    marks = [*_OPTION_BYTES.finditer(utf8)]
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
        math.log1p(len(_INTEGER.findall(stem))),
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


# Reasoning keywords (SPEC RT-02) in both spellings: a fixed stem, then one of its endings, or more words. A space among
# them is any white space, a hyphen also hyphens.
KEYWORDS: dict[str, tuple[str, tuple[str, ...]]] = {
    "analyze": ("analy", ("se", "ses", "sed", "sing", "sis", "ze", "zes", "zed", "zing", "zis")),
    "compare": ("compar", ("e", "es", "ed", "ing", "ison")),
    "explain_why": ("explain", (" why",)),
    "step_by_step": ("step", ("-by-step",)),
    "evaluate": ("evaluat", ("e", "es", "ed", "ing", "ion")),
    "synthesize": ("synthesi", ("se", "ses", "sed", "sing", "ze", "zes", "zed", "zing")),
    "what_would_happen_if": ("what", (" would happen if",)),
}


def _pattern(stem: str, rests: tuple[str, ...]) -> re.Pattern[str]:
    """Return the search for a keyword. The word boundary before the stem is checked after it: a pattern that starts
    with literal characters is searched for at memory speed, one that starts with \\b is tried at every position."""
    rest = "|".join(rests).replace("-", r"[\s\-]+").replace(" ", r"\s+")
    return re.compile(rf"{stem}(?<!\w{stem})(?:{rest})\b")


_KEYWORD_SEARCHES = {stem: _pattern(stem, rests) for stem, rests in KEYWORDS.values()}
# A later word of a keyword, without which the pattern of its frequent stem need not be searched.
_LATER = {"explain": "why", "step": "by", "what": "happen"}
_STEMS = Marks([*_KEYWORD_SEARCHES, *_LATER.values()])

LEXICON: dict[str, str] = {
    "maths": "sum product equation equations solve integral derivative probability percent ratio theorem polynomial "
    "prime matrix group ring field integer integers real function graph triangle circle angle area volume equal "
    "total each per average twice half times remainder vector linear subset isomorphic cyclic abelian convergent",
    "code": "python java javascript function return import def class assert algorithm sql array list string code "
    "program variable loop compile recursion write integer boolean dictionary tuple output input cache thread",
    "science": "energy mass force velocity acceleration electron proton atom atomic molecule chemical reaction acid "
    "base solution temperature pressure gas liquid heat wave wavelength frequency light field charge current voltage "
    "circuit orbital nucleus plant plants cell cells organism species dna rna gene genes protein enzyme evolution "
    "earth planet sun moon rock soil water ecosystem telescope galaxy star stars metal",
    "medicine": "patient patients disease treatment drug blood muscle nerve symptoms diagnosis clinical therapy "
    "infection virus cancer heart kidney liver brain pain medical physician hospital child woman man old year "
    "vitamin diet hormone bone artery tissue syndrome",
    "law": "court law statute contract defendant plaintiff constitution constitutional liability tort crime criminal "
    "police state federal amendment jury judge property seller buyer attorney prosecution negligence legal rights",
    "business": "market price demand supply firm firms cost costs revenue tax inflation interest rate bank monetary "
    "fiscal gdp trade unemployment company management marketing consumer customers investment stock profit audit",
    "humanities": "history war century empire king president government political party treaty philosophy philosopher "
    "moral ethics ethical wrong argument religion religious god church society social culture according passage "
    "author virtue justice duty utilitarianism kant",
    "psychology": "psychologist psychology behavior behavioural cognitive memory learning anxiety personality "
    "conditioning stimulus attachment freud perception attitude motivation emotion stress counselor student students",
    "commonsense": "person people someone something want wants likely place where home house kitchen store room "
    "school friend friends family would could get find put keep play eat sleep travel",
    "writing": "write essay story poem email letter summarize summarise summary rewrite translate draft article blog "
    "sentence paragraph describe",
}
_MARKS: dict[str, str] = {
    "negation": "not no never except unless neither nor without cannot false incorrect least isnt doesnt dont",
    "quantifiers": "all none each every both any some most only must always either",
    "reasoning": "why prove explain derive because therefore if then suppose assume given implies conclude infer cause "
    "design justify show determine calculate compute",
    "question_words": "what who whom whose when where which why how",
    "connectives": "and or but that which who because while although whereas after before if when whether so",
    "statements": "statement statements i ii iii iv following",
}
DOMAINS = tuple(LEXICON)
_KINDS = (*DOMAINS, *_MARKS)


# Each word belongs to some kinds. The counts of all kinds are fields of one integer, so that a turn is counted by one
# sum over its words, several times faster than a loop. A field's range exceeds the words of a turn.
_FIELD_BITS = 16
_FIELD_MASK = (1 << _FIELD_BITS) - 1
_FIELD_SHIFTS = range(0, _FIELD_BITS * len(_KINDS), _FIELD_BITS)
_FIELDS_OF: dict[str, int] = {}
for _kind, _words in enumerate((*LEXICON.values(), *_MARKS.values())):
    for _word in _words.split():
        _FIELDS_OF[_word] = _FIELDS_OF.get(_word, 0) | 1 << (_kind * _FIELD_BITS)


def _count_kinds(tokens: Sequence[str]) -> list[int]:
    """Return how many of the tokens belong to each kind."""
    total = sum(filter(None, map(_FIELDS_OF.get, tokens)))
    return [total >> shift & _FIELD_MASK for shift in _FIELD_SHIFTS]


# Each byte of a turn is mapped to the letter of its class, and patterns are searched in that string: white
# space, capitals, digits, ends of sentences or starts of lists, and the rest.
_CLASS_OF = bytearray(b"x" * 256)
_LETTERS = {"s": string.whitespace, "C": string.ascii_uppercase, "0": string.digits, ".": ".?!:"}
for _letter, _characters in _LETTERS.items():
    for _byte in _characters.encode():
        _CLASS_OF[_byte] = ord(_letter)
_CLASS_TABLE = bytes(_CLASS_OF)
# Patterns that start with literal bytes are searched at memory speed. A capitalised word after a space that does not
# start a sentence, with the capitalised words right after it; and the first digit of a run.
_ENTITY = re.compile(rb"sC(?<!\.sC)[^s]*(?:sC[^s]*)*")
_NUMBER = re.compile(rb"0(?<!00)")
_OPTION = re.compile(r"\n\(?[A-J][.):] ")
# Kinds of characters whose share of the turn is a feature, in the order of the features.
_SHARES = ("maths_symbols", "brackets", "digits", "quotes", "backslashes", "commas", "capitals", "non_ascii")
_CODE = ("```", "def ", "assert ", "import ", "return ", "class ", ") {")

_OWN_NAMES: tuple[str, ...] = (
    "log_chars",
    "log_words",
    "mean_word_length",
    "distinct_word_share",
    "log_sentences",
    "log_lines",
    "question_marks",
    "question_depth",
    "starts_with_what",
    "starts_with_how",
    "starts_with_why",
    "entity_count",
    "entity_share",
    "number_count",
    "number_share",
    "multiple_choice_options",
    "blank_to_fill",
    "code_markers",
    "latex_markers",
    *(f"keyword_{name}" for name in KEYWORDS),
    *(f"share_{kind}" for kind in _KINDS),
    *(f"has_{domain}" for domain in DOMAINS),
    *(f"share_{name}" for name in _SHARES),
    "domain_specificity",
)
FEATURE_NAMES = (*_OWN_NAMES, *OPTION_FEATURE_NAMES)
_QUESTION_WORDS, _CONNECTIVES = _KINDS.index("question_words"), _KINDS.index("connectives")


def surface_features(turn: str, tokens: Sequence[str], turn_chars: int) -> npt.NDArray[np.float32]:
    """Return float32 [len(FEATURE_NAMES)] for `turn`, whose `tokens` come from `tokenise`.

    `turn_chars` is the length before the turn was cut. Shares are per token or per character; counts are log1p.
    """
    if KERNELS is not None:
        return _by_kernels(turn, tokens, turn_chars)
    n, chars = max(len(tokens), 1), max(len(turn), 1)
    kinds = _count_kinds(tokens)
    utf8 = turn.encode(errors="replace")
    has = count_characters(utf8)
    classes = utf8.translate(_CLASS_TABLE)
    entities, numbers = len(_ENTITY.findall(classes)), len(_NUMBER.findall(classes))
    lower, first = turn.lower(), tokens[0] if tokens else ""
    most, next_most = sorted(kinds[: len(DOMAINS)])[:-3:-1]
    log = math.log1p
    values = [
        log(turn_chars),
        log(n * turn_chars / chars),
        (len(utf8) - has.line_breaks - has.other_space) / n,
        len(set(tokens)) / n,
        log(has.questions + has.exclamations + turn.count(". ") + turn.count(".\n")),
        log(has.line_breaks),
        log(has.questions),
        question_depth(has.questions, kinds[_QUESTION_WORDS], kinds[_CONNECTIVES]),
        float(first in ("what", "which", "who", "when", "where")),
        float(first == "how"),
        float(first == "why"),
        log(entities),
        entities / n,
        log(numbers),
        numbers / n,
        log(len(_OPTION.findall(turn))),
        float("__" in turn),
        log(sum(map(turn.count, _CODE))),
        log(has.backslashes + has.dollars),
        *[len(pattern.findall(lower)) if stem in lower else 0.0 for stem, pattern in _KEYWORD_SEARCHES.items()],
        *[count / n for count in kinds],
        *[1.0 if count else 0.0 for count in kinds[: len(DOMAINS)]],
        (has.other_maths + has.dollars) / chars,
        has.brackets / chars,
        has.digits / chars,
        has.quotes / chars,
        has.backslashes / chars,
        has.commas / chars,
        has.capitals / chars,
        has.non_ascii / chars,
        (most - next_most) / n,
    ]
    return np.concatenate((np.array(values, dtype=np.float32), option_features(utf8)))


def _by_kernels(turn: str, tokens: Sequence[str], turn_chars: int) -> npt.NDArray[np.float32]:
    values = np.zeros(len(FEATURE_NAMES), np.float32)
    utf8 = turn.encode(errors="replace")
    KERNELS.surface_features(SURFACE, NATIVE, utf8, len(turn), tokens, turn_chars, values)
    lower = turn.lower()
    marks = _STEMS.within(lower)
    for stem in marks:
        if stem in _PLACE_OF and _LATER.get(stem, stem) in marks:
            values[_PLACE_OF[stem]] = len(_KEYWORD_SEARCHES[stem].findall(lower))
    return values


def _kinds_of_words() -> dict[str, int]:
    """Return word → its kinds, as bits."""
    kinds = range(len(_KINDS))
    return {word: sum(1 << k for k in kinds if fields >> _FIELD_SHIFTS[k] & 1) for word, fields in _FIELDS_OF.items()}


_PLACE_OF = {stem: FEATURE_NAMES.index(f"keyword_{name}") for name, (stem, _) in KEYWORDS.items()}
# For the kernels of surface features and of whole turns.
SURFACE: Any = None
if KERNELS is not None:
    SURFACE = KERNELS.make_surface(
        KIND_TABLE,
        _CLASS_TABLE,
        _kinds_of_words(),
        np.array([len(_KINDS), len(DOMAINS), _QUESTION_WORDS, _CONNECTIVES], np.int32),
        _CODE,
        tuple(KEYWORDS.values()),
    )


def question_depth(questions: int, question_words: int, connectives: int) -> float:
    """Return the nesting of the question: log of its question words and clause connectives per question."""
    return math.log1p((question_words + connectives) / max(questions, 1))
