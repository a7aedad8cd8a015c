"""Answers out of a stated set, and short entities.

The options of a multiple-choice prompt, yes or no, and labels that a prompt lists. The key words of an answer to "who,
where, when, which", and when two of them name the same.
"""

import re
from typing import Literal

from tiers.final_answer.text import clean, ending, is_short, marks, mentions, negates, normalised, refuses, word_set

_MOST_ANSWER_WORDS = 80
_MOST_KEY_WORDS = 12
_WORD = re.compile(r"[^\W_]+")
_SENTENCE_END = re.compile(r"(?<=[^\W\d_]{3}[.!?])\s|(?<=\d[.!?])\s|\n")
_STOP_WORDS = word_set(
    "a an the of in on at to by for from with and or as is are was were be been it its this "
    "that these those she they her their who which what when where whose how has had have did do does there s also "
    "known called named answer final correct"
)
# Words of which one makes another thing: numbers do too.
_TELLING = word_set(
    "january february march april may june july august september october november december monday tuesday wednesday "
    "thursday friday saturday sunday north south east west northern southern eastern western first second third fourth "
    "fifth sixth last upper lower old new senior junior sr jr bc ad ii iii iv v vi vii viii ix x i"
)
_OPEN = re.compile(
    r"\b(?:why|explain|describe|discuss|difference|differences|compare|best|better|worst|ways?|tips?|advice|should"
    r"|recommend|think|opinion|purpose|advantages?|disadvantages?|benefits?|pros|cons|steps|examples?|ideas?|write|code"
    r"|how (?:do|can|to|does|did|would|could|is|are)|mean|means|meaning|definition|impact|effects?|causes?|role"
    r"|importance|strategy|your|my|summari[sz]e|implications?"
    r"|(?:are|am|do|does|can|could|would|did|shall|will|have|if) (?:you|i|we))\b",
    re.IGNORECASE,
)
_ASKED = re.compile(
    r"\b(?:who(?:m|se)?|where|when|which|what (?:is|was|are|were)? ?(?:the )?(?:name|title|capital|year|date|day"
    r"|month|city|country|state|colou?r|language|nationality|surname|nickname|term|word|team|film|book|song|band))"
    r"\b|^in what\b|^(?:\W*(?:the )?\w+ ){0,4}what \w+\b|^name the\b|^what\b",
    re.IGNORECASE,
)
_MOST_QUESTION_WORDS = 32


def asks_for_entity(prompt: str) -> bool:
    """Return whether `prompt` is one short question about who, where, when, which or what, that asks for a name."""
    flat = prompt.strip()
    if len(flat.split()) > _MOST_QUESTION_WORDS or "\n" in flat:
        return False
    return _ASKED.search(flat) is not None and _OPEN.search(flat) is None


def key_words(prompt: str, text: str) -> str | None:
    """Return the words of the first sentence of a short answer that are neither common nor in `prompt`; None for a
    refusal, a denial, a long answer, or if too many or no words are left."""
    if len(text) > 1000 or len(text.split()) > _MOST_ANSWER_WORDS or refuses(text):
        return None
    sentence = _SENTENCE_END.split(clean(next((line for line in text.splitlines() if line.strip()), "")), maxsplit=1)[0]
    if not sentence or negates(sentence):
        return None
    asked = set(_WORD.findall(prompt.casefold()))
    said = [word for word in _WORD.findall(sentence.casefold()) if word not in _STOP_WORDS and word not in asked]
    return " ".join(said) if 0 < len(said) <= _MOST_KEY_WORDS else None


def same_entity(first: str, second: str) -> bool:
    """Return whether two lists of key words name the same: one holds the other, or token F1 is at least 0.5.

    Not if numbers, months, directions and the like differ: 5 May is not 6 May. Two names of up to two words that share
    one of them differ: Michael Jackson, Michael Jordan.
    """
    a, b = first.split(), second.split()
    set_a, set_b = set(a), set(b)
    if not a or not b:
        return False
    telling_a, telling_b = ({word for word in words if _is_telling(word)} for words in (set_a, set_b))
    if not (telling_a <= telling_b or telling_b <= telling_a):
        return False
    shorter, longer = sorted((a, b), key=len)
    if f" {' '.join(shorter)} " in f" {' '.join(longer)} ":
        return True
    shared = len(set_a & set_b)
    f1 = 2 * shared / (len(set_a) + len(set_b))
    return f1 > 0.5 if max(len(a), len(b)) <= 2 else f1 >= 0.5


def _is_telling(word: str) -> bool:
    return word in _TELLING or any(character.isdigit() for character in word)


_OPTION_LINE = re.compile(r"^[ \t]*(?:[-*•][ \t]+)?\*{0,2}\(?([A-J])[).:]\*{0,2}[ \t]+(\S.*?)[ \t]*$", re.MULTILINE)
_OPTION_INLINE = re.compile(r"(?:^|\s)\(?([A-J])\)\s+(\S.*?)(?=\s\(?[A-J]\)\s|$)", re.DOTALL)
_LETTER_MARKER = re.compile(
    r"\b(?:answer|option|choice)\s*(?:is|are|:|=)*\s*(?:option\s+|choice\s+)?\(?([A-J])\b\)?(.*)", re.IGNORECASE
)
_LETTER_FIRST = re.compile(r"\(?([A-J])(?:[).:](?:\s|$)|$)")
_LETTER_ALONE = re.compile(r"(?<![\w'])\(?([A-J])[).:](?:[\s,;]|$)")
_BOX_WORDS = re.compile(r"\\(?:text|textbf|mathrm|mathbf|mbox|boldsymbol)\s?\{|[{}$]|\\[()\[\]]")
_MARKED_LETTER = re.compile(
    r"(?:the\s+)?(?:(?:correct\s+)?(?:option|choice|answer)(?:\s+is)?:?\s+)?\(?([A-J])\)?(?![\w'])(.*)", re.I
)
_SEVERAL = re.compile(r"[\s,;/&)]*(?:and|or|&|,|/)?\s*\(?[A-J]\)?(?![\w'])")

_YES_NO = r"(yes|no|true|false)\b"
_SAID_YES_NO = re.compile(rf"\banswer(?:\s+is)?\s*:?\s*[*]*{_YES_NO}", re.IGNORECASE)
_ANY_YES_NO = re.compile(rf"\b{_YES_NO}", re.IGNORECASE)
_YES_NO_ASKED = re.compile(r"\b(yes|true)\b[\"'’]?\s*(?:or|/|\|)\s*[\"'‘]?(no|false)\b", re.I)
_POLAR = re.compile(r"^\s*(is|are|was|were|does|did)\b[^?.!\n]*\?\s*$", re.I)
_NOT_POLAR = re.compile(r"\b(or|why|how|explain|what|which|there (a|any) way)\b", re.I)

_LIST_STATED = re.compile(
    r"\b(?:(?:exactly |only )?one of(?: the following| these)?(?: [a-z]{3,15}){0,3}"
    r"|(?:possible |allowed |valid )?(?:labels|categories|classes|sentiments|choices)(?: are)?"
    r"|(?:classify|label|categori[sz]e)\b[^\n:.]{0,80}?\b(?:as|into)(?: either| one of)?)"
    r"\s{0,5}:?\s{0,5}([^\n.?;]{3,200})",
    re.IGNORECASE,
)
_TWO_STATED = re.compile(
    r"\b(?:answer|reply|respond|return|output|print|say)\b(?: only| just| either| with| exactly| by){0,3}\s+"
    r"[\"'“‘`]?([\w-]{1,20})[\"'”’`]?\s*(?:or|/|\|)\s*[\"'“‘`]?([\w-]{1,20})[\"'”’`]?(?=[\s.,;:)]|$)",
    re.IGNORECASE,
)
_QUOTED_STATED = re.compile(
    r"\b(?:answer|reply|respond|return|output|print)\b(?: only| just| with){0,2}\s+[\"'“‘`]([^\"'”’`\n]{1,30})[\"'”’`]",
    re.I,
)
_TRUTH_STATED = re.compile(
    r"\b(?:return|answer|reply|respond|output|print)\b[^.\n]{0,20}\b(True|Yes)\b[^.\n]{1,160}\b(False|No)\b"
)
_SPLIT = re.compile(r"\s*(?:,\s*(?:or|and)\s|,|\||/|\s(?:or|and)\s)\s*", re.IGNORECASE)
_NO_LABEL = re.compile(r"\b(?:the|a|an|your|this|that|my|it|is|are|following|e\.g)\b", re.IGNORECASE)
_MOST_LABELS = 24
_SHORT_ANSWER_WORDS = 30


def options(prompt: str) -> dict[str, str]:
    """Return a multiple-choice prompt's options by letter: at least A and B, without gaps; empty for others."""
    for pattern in (_OPTION_LINE, _OPTION_INLINE):
        texts = {letter: clean(text) for letter, text in pattern.findall(prompt)}
        if len(texts) < 2:
            continue
        # Statements I and II before the options are no ninth option.
        run = [letter for index, letter in enumerate("ABCDEFGHIJ") if set("ABCDEFGHIJ"[: index + 1]) <= texts.keys()]
        if len(run) >= 2 and texts.keys() - run <= {"C", "D", "I"}:
            return {letter: texts[letter] for letter in run}
    return {}


def choice_letter(text: str, offered: dict[str, str], *, brackets: bool = False) -> str | None:
    """Return which of `offered` (see `options`) the text chooses, or None if that is unclear.

    In this order: the last marked answer (see `marks`); a text that is a letter or an option's words, or starts with
    the only letter that stands alone in it; the last "option B" or "answer B"; the only letter that stands alone.
    """
    for mark in marks(text, brackets=brackets):
        letter = _marked_letter(mark.content, offered, strict=mark.strict)
        if letter is not None:
            return letter
        if mark.strict:
            return None
    flat = clean(text)
    if (sole := re.fullmatch(r"\(?([a-j])[.):]?", flat)) and sole[1].upper() in offered:
        return sole[1].upper()
    alone = {letter for letter in _LETTER_ALONE.findall(flat) if letter in offered}
    if first := _LETTER_FIRST.match(flat):
        if first[1] not in offered:
            return None
        if len(alone) <= 1:
            return first[1]
    if letter := _of_words(flat, offered):
        return letter
    for marked in reversed(list(_LETTER_MARKER.finditer(flat))):
        letter, rest = marked.group(1).upper(), marked.group(2)
        # "the answer is a fishing rod" is option A only if option A is the fishing rod.
        if letter in offered and (not re.match(r"\s+\w", rest) or _continues(rest, offered[letter])):
            return letter
    return alone.pop() if len(alone) == 1 and not negates(flat[-200:]) else None


def yes_or_no(text: str) -> Literal["yes", "no"] | None:
    """Return the text's answer to a polar question: after "answer" if there, else its first yes, no, true, false."""
    match = _SAID_YES_NO.search(text) or _ANY_YES_NO.search(text)
    if match is None:
        return None
    return "yes" if match.group(1).lower() in ("yes", "true") else "no"


def names_yes_and_no(prompt: str) -> bool:
    """Return whether `prompt` names both answers, as "yes or no"."""
    return mentions(prompt.casefold(), "yes", "true") and _YES_NO_ASKED.search(prompt) is not None


def asks_yes_or_no(prompt: str) -> bool:
    """Return whether `prompt` names the two answers, or is a short question that has no others."""
    if names_yes_and_no(prompt):
        return True
    return is_short(prompt) and _POLAR.match(prompt) is not None and not _NOT_POLAR.search(prompt)


def stated_labels(prompt: str) -> tuple[str, ...]:
    """Return the labels that `prompt` says an answer must be one of, lower case, in its order; empty for none."""
    folded = prompt.casefold()
    if mentions(folded, "yes", "true") and (_YES_NO_ASKED.search(prompt) or _TRUTH_STATED.search(prompt)):
        return ("true", "false") if re.search(r"\btrue\b[^.\n]{0,160}\bfalse\b", prompt, re.I) else ("yes", "no")
    if mentions(folded, "one of", "label", "categori", "classes", "sentiments", "choices", "classify"):
        for stated in _LIST_STATED.finditer(prompt):
            labels = _labels(_SPLIT.split(stated[1].strip()))
            if labels:
                return labels
    if mentions(folded, "answer", "reply", "respond", "return", "output", "print", "say"):
        if two := _TWO_STATED.search(prompt):
            return _labels([two[1], two[2]])
        quoted = list(dict.fromkeys(normalised(quote) for quote in _QUOTED_STATED.findall(prompt)))
        if len(quoted) >= 2 and (labels := _labels(quoted)):
            return labels
    return ("yes", "no") if asks_yes_or_no(prompt) else ()


def stated_label(text: str, labels: tuple[str, ...], *, brackets: bool = False) -> str | None:
    """Return which of `labels` the text says, or None if that is unclear: the last marked one; the whole text, its
    first words before a stop, its last line; the only one that a text of few words mentions."""
    for mark in marks(text, brackets=brackets):
        label = _only_label(mark.content, labels)
        if label is not None:
            return label
        if mark.strict:
            return None
    lines = [line for line in ending(text).splitlines() if line.strip()]
    if not lines or refuses(lines[0]):
        return None
    for line in (lines[0], lines[-1]):
        if normalised(line) in labels:
            return normalised(line)
    opening = re.split(r"[.,;:!\n–—]|\s-\s", clean(lines[0]), maxsplit=1)[0]
    if normalised(opening) in labels:
        return normalised(opening)
    return _only_label(lines[-1] if len(lines) > 1 else text, labels)


def _only_label(text: str, labels: tuple[str, ...]) -> str | None:
    """Return the only label that `text`, which must be short and deny nothing, mentions."""
    if "{" in text and '"' in text:
        return None  # a structure that mentions a label
    said = normalised(_BOX_WORDS.sub(" ", text))
    if said in labels:
        return said
    if len(said.split()) > _SHORT_ANSWER_WORDS or negates(
        re.sub(r"\b(?:no|not)\b", "", said) if "no" in labels else said
    ):
        return None
    pattern = "|".join(re.escape(label) for label in sorted(labels, key=len, reverse=True))
    mentioned = set(re.findall(rf"(?<![\w-])(?:{pattern})(?![\w-])", said))
    return mentioned.pop() if len(mentioned) == 1 else None


def _marked_letter(content: str, offered: dict[str, str], *, strict: bool) -> str | None:
    said = clean(_BOX_WORDS.sub(" ", content))
    if match := _MARKED_LETTER.match(said):
        letter, rest = match[1].upper(), match[2].lstrip()
        if letter in offered and not _SEVERAL.match(rest):
            follows = rest.lstrip(".:)-– ")
            spelt = match[1].isupper() and (not rest or rest[0] in ".,:;)-–(")
            if not follows or _continues(follows, offered[letter]) or (spelt and not _others(rest, letter, offered)):
                return letter
    return _of_words(said, offered) if strict or len(said) < 200 else None


def _others(rest: str, letter: str, offered: dict[str, str]) -> bool:
    return any(other in offered and other != letter for other in _LETTER_ALONE.findall(rest))


def _of_words(flat: str, offered: dict[str, str]) -> str | None:
    said = normalised(flat)
    letters = [
        letter for letter, option in offered.items() if said in (normalised(option), normalised(f"{letter} {option}"))
    ]
    return letters[0] if len(letters) == 1 else None


def _labels(items: list[str]) -> tuple[str, ...]:
    """Return the items as labels if every one can be one: two or more of a few words each."""
    labels = tuple(dict.fromkeys(normalised(item.strip("()[]{}<>: ")) for item in items if item.strip()))
    fits = all(
        label and len(label.split()) <= 4 and len(label) <= 40 and not _NO_LABEL.search(label) for label in labels
    )
    return labels if fits and 2 <= len(labels) <= _MOST_LABELS else ()


def _continues(rest: str, option: str) -> bool:
    return bool(normalised(option)) and normalised(rest).startswith(normalised(option))
