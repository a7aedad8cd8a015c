"""Short entities: the key words of an answer to "who, where, when, which", and when two of them name the same."""

import re

from tiers.final_answer.text import clean, negates, refuses, word_set

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
    r"|importance|strategy|you|your|my|me|i|we|our|all|list|summari[sz]e|implications?)\b",
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
    sentence = _SENTENCE_END.split(clean(_first_line(text)), maxsplit=1)[0]
    if not sentence or negates(sentence):
        return None
    asked = set(_WORD.findall(prompt.casefold()))
    said = [word for word in _WORD.findall(sentence.casefold()) if word not in _STOP_WORDS and word not in asked]
    return " ".join(said) if 0 < len(said) <= _MOST_KEY_WORDS else None


def same_entity(one: str, other: str) -> bool:
    """Return whether two lists of key words name the same: one holds the other, or token F1 is at least 0.5.

    Not if numbers, months, directions and the like differ: 5 May is not 6 May. Two names of up to two words that share
    one of them differ: Michael Jackson, Michael Jordan.
    """
    a, b = one.split(), other.split()
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


def _first_line(text: str) -> str:
    return next((line for line in text.splitlines() if line.strip()), "")
