"""Surface features of a turn (RT-02): counts that describe the kind of question, named for explanations."""

import math
import re
import string
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from classifier.features.character_counts import KIND_TABLE, count_characters
from classifier.features.marks import Marks
from classifier.features.multiple_choice import NATIVE as NATIVE_OPTIONS
from classifier.features.multiple_choice import OPTION_FEATURE_NAMES, option_features
from classifier.native import KERNELS

# Reasoning keywords (SPEC RT-02) in both spellings: a fixed stem, then its endings.
KEYWORDS: dict[str, tuple[str, str]] = {
    "analyze": ("analy", r"[sz](?:e|es|ed|ing|is)"),
    "compare": ("compar", r"(?:e|es|ed|ing|ison)"),
    "explain_why": ("explain", r"\s+why"),
    "step_by_step": ("step", r"[\s-]+by[\s-]+step"),
    "evaluate": ("evaluat", r"(?:e|es|ed|ing|ion)"),
    "synthesize": ("synthesi", r"[sz](?:e|es|ed|ing)"),
    "what_would_happen_if": ("what", r"\s+would\s+happen\s+if"),
}
# The word boundary before the stem is checked after it: a pattern that starts with literal characters is searched
# for at memory speed, one that starts with \b is tried at every position.
_KEYWORD_SEARCHES = {stem: re.compile(rf"{stem}(?<!\w{stem}){rest}\b") for stem, rest in KEYWORDS.values()}
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
    KERNELS.surface_features(_NATIVE, NATIVE_OPTIONS, utf8, len(turn), tokens, turn_chars, values)
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
if KERNELS is not None:
    _NATIVE = KERNELS.make_surface(
        KIND_TABLE,
        _CLASS_TABLE,
        _kinds_of_words(),
        np.array([len(_KINDS), len(DOMAINS), _QUESTION_WORDS, _CONNECTIVES, len(KEYWORDS)], np.int32),
        _CODE,
    )


def question_depth(questions: int, question_words: int, connectives: int) -> float:
    """Return the nesting of the question: log of its question words and clause connectives per question."""
    return math.log1p((question_words + connectives) / max(questions, 1))
