"""Copies of a prompt that ask for the same: misspelt, in ornate words, with instructions on the form of the answer,
behind words that it does not need, and with words of another language. All draws are of the given generator."""

import re
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from random import Random

from classifier.errors import TrainingDataError

LISTS = Path(__file__).parents[1] / "prompts"


def _words(text: str) -> list[str]:
    return text.split()


_ALPHABET = "abcdefghijklmnopqrstuvwxyz"
# Neighbours of a letter on a keyboard.
_KEYS = dict(
    pair.split(":")
    for pair in _words(
        "q:wa w:qes e:wrd r:etf t:ryg y:tuh u:yij i:uok o:ipl p:ol a:qsz s:awdx d:sefc f:drgv g:fthb h:gyjn j:hukm "
        "k:jil l:kop z:asx x:zsdc c:xdfv v:cfgb b:vghn n:bhjm m:njk"
    )
)
# Spellings that sound alike.
_SOUNDS = tuple(
    tuple(pair.split(":"))
    for pair in _words(
        "ph:f ie:ei ei:ie tion:shun ough:uff ence:ance ance:ence able:ible ight:ite cc:c ss:s ll:l mm:m ck:k qu:kw "
        "wh:w kn:n ys:is y:i c:s c:k z:s a:e e:a o:u i:e"
    )
)
_WORD = re.compile(r"[^\W\d_]{3,}")
# Shares of the words that are misspelt.
_RATES = (0.05, 0.15, 0.3, 0.3)
# Words of hard requests, to stand around requests that do not need them.
_HARD = _words(
    """theorem proof quantum algorithm cryptographic eigenvalue manifold asymptotic polynomial stochastic topology
    distributed consensus derivative integral optimise complexity concurrency thermodynamics epistemology
    differential architecture rigorous hypothesis lemma gradient tensor combinatorial"""
)


def misspelt(text: str, rng: Random) -> str:
    """Return `text` with a share of its words misspelt."""
    rate = rng.choice(_RATES)
    return _WORD.sub(lambda word: _misspelt(word[0], rng) if rng.random() < rate else word[0], text)


def _misspelt(word: str, rng: Random) -> str:
    for _ in range(1 if len(word) < 7 or rng.random() < 0.75 else 2):
        at, kind = rng.randrange(len(word)), rng.randrange(6)
        before, letter, after = word[:at], word[at], word[at + 1 :]
        if kind == 0 and after:
            word = before + after[0] + letter + after[1:]
        elif kind == 1 and len(word) > 3:
            word = before + after
        elif kind == 2:
            word = before + letter + letter + after
        elif kind == 3:
            word = before + rng.choice(_KEYS.get(letter.lower(), _ALPHABET)) + after
        elif kind == 4 and (alike := [pair for pair in _SOUNDS if pair[0] in word.lower()]):
            sound, other = rng.choice(alike)
            at = word.lower().find(sound)
            word = word[:at] + other + word[at + len(sound) :]
        else:
            word = before + rng.choice(_ALPHABET) + letter + after
    return word


def ornate(text: str, rng: Random) -> str:
    """Return `text` in ornate words, perhaps in an ornate frame."""
    pattern, ornate_of = _ornate_words()

    def other(word: re.Match[str]) -> str:
        if rng.random() < 0.2:
            return word[0]
        said = rng.choice(ornate_of[word[0].lower()])
        return said[0].upper() + said[1:] if word[0][0].isupper() else said

    text = pattern.sub(other, text)
    if rng.random() >= 0.6:
        return text
    if len(text) > 1 and text[0].isupper() and text[1].islower():
        text = text[0].lower() + text[1:]
    return rng.choice(_lines("ornate_frames.txt")).replace("{}", text)


def wrapped(text: str, rng: Random, language: str = "en") -> str:
    """Return `text` with instructions on the form of the answer, mostly in its `language`."""
    wrappers, sentences = _answer_forms()
    if rng.random() < 0.3:
        return rng.choice(wrappers).replace("{}", text)
    phrases = sentences["en" if language not in sentences or rng.random() < 0.2 else language]
    said = " ".join(rng.sample(phrases, min(len(phrases), rng.choice((1, 1, 2, 2, 3, 4)))))
    between = rng.choice(("\n\n", "\n", " "))
    if rng.random() < 0.25:
        return said + between + text
    stop = "." if between == " " and text[-1:] not in ".!?。?!" else ""
    return text + stop + between + said


def stuffed(text: str, rng: Random) -> str:
    """Return `text` next to hard words that it does not need, some of them repeated."""
    words = rng.sample(_HARD, rng.choice((1, 3, 6, 10)))
    said = " ".join(rng.choices(words, k=rng.randrange(4, 13)))
    return f"{said} {text}" if rng.random() < 0.7 else f"{text} {said}"


def switched(text: str, language: str, rng: Random) -> str | None:
    """Return `text`, which is English, with the words of the lexicon in `language` and without the words of grammar;
    None where the lexicon has few of its words."""
    pattern, place_of = _lexicon_words()
    said, count = _lexicon()[language], 0

    def other(word: re.Match[str]) -> str:
        nonlocal count
        count += 1
        return said[place_of[word[0].lower()]]

    text_words = [word for word in re.findall(r"[A-Za-z']+", text) if word.lower() not in _GRAMMAR]
    mixed = pattern.sub(other, text)
    if count < 2 or count < 0.35 * len(text_words):
        return None
    mixed = " ".join(word for word in mixed.split() if word.lower().strip(".,;:!?") not in _GRAMMAR)
    return re.sub(r"(?<=[^\x00-\x7f]) (?=[^\x00-\x7f])", "", mixed) if language in ("zh", "ja") else mixed


def languages() -> list[str]:
    """Return the codes of the languages of the lexicon but English."""
    return [language for language in _lexicon() if language != "en"]


_GRAMMAR = frozenset(
    _words(
        """a an the of to is are was were be in on at for and or that this these those it its with by from as do
        does did me my i you your can could would should will please if then into their there have has had we our us
        they not so"""
    )
)
# Words that mean nearly what one of the lexicon does.
_LIKE = {
    "analyze": "analyse", "summarize": "summarise", "optimize": "optimise", "color": "colour", "e-mail": "email",
    "show": "prove", "build": "construct", "create": "develop", "compute": "calculate", "any": "every",
    "each": "every", "function": "program", "tell": "explain", "give": "list", "mean": "meaning",
    "minimal": "optimal", "best": "optimal", "fast": "efficient", "rigorously": "rigorous",
}  # fmt: skip


@cache
def _lines(name: str) -> list[str]:
    try:
        text = (LISTS / name).read_text("utf-8")
    except OSError as error:
        raise TrainingDataError(f"{LISTS / name} cannot be read: {error.strerror}. Train in a checkout.") from error
    return [line for line in text.splitlines() if line and not line.startswith("# ")]


def _any_of(words: Iterable[str]) -> re.Pattern[str]:
    longest_first = sorted(words, key=len, reverse=True)
    return re.compile(rf"(?<![\w'])({'|'.join(map(re.escape, longest_first))})(?![\w'])", re.IGNORECASE)


@cache
def _ornate_words() -> tuple[re.Pattern[str], dict[str, list[str]]]:
    ornate_by_word: dict[str, list[str]] = {}
    for line in _lines("ornate_words.txt"):
        plain, *said = (part.strip() for part in line.split("|"))
        ornate_by_word.update(dict.fromkeys((word.strip() for word in plain.split("/")), said))
    return _any_of(ornate_by_word), ornate_by_word


@cache
def _answer_forms() -> tuple[list[str], dict[str, list[str]]]:
    lines = _lines("answer_forms.txt")
    wrappers = [line.replace("\\n", "\n") for line in lines if "{}" in line]
    parted = (line.partition("=") for line in lines if "{}" not in line)
    return wrappers, {language: said.split("|") for language, _, said in parted}


@cache
def _lexicon() -> dict[str, list[str]]:
    parted = (line.partition("=") for line in _lines("lexicon.txt"))
    return {language: words.split("|") for language, _, words in parted}


@cache
def _lexicon_words() -> tuple[re.Pattern[str], dict[str, int]]:
    index_of: dict[str, int] = {}
    for index, word in enumerate(_lexicon()["en"]):
        stem = word[:-1] if word.endswith("e") else word
        plural = f"{word[:-1]}ies" if word.endswith("y") else f"{word}s"
        for form in (word, plural, f"{stem}ed", f"{stem}ing", f"{word}es"):
            index_of.setdefault(form, index)
    for word, like in _LIKE.items():
        index_of.setdefault(word, index_of[like])
    return _any_of(index_of), index_of
