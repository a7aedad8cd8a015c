"""Recognise the housekeeping of chat front ends: a title, tags, a line of summary, follow-up questions, search queries
or a completion for a conversation, which its user never asked for.

Front ends send these as ordinary requests, three or four for each turn of a user, with the conversation in them: only
their own wording tells them from a user's request. Known prompts are rows of `tiers/dialects/quirks/clients.toml`,
matched as a whole beginning and, where the prompt has one, end, never by a search in the conversation that stands
between.

Others are known by what they ask. A quoted conversation is known by its form: an element, messages in JSON, or lines
of both speakers. The text around it is read clause by clause: at least one asks for such a thing, and every other says
how the answer has to look or what the conversation is. All else is in doubt and no housekeeping, as a missed request is
only routed as any other. The words are rows by language in `housekeeping_words.toml`.
"""

import re
import tomllib
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import NamedTuple

from tiers.conversation import Turn
from tiers.dialects.quirks import client_rows

# What is recognised by what it asks has this in place of a client's name.
ANY_FRONT_END = "front-end"
PROMPTS = client_rows().prompts
_BEGIN_TURNS = tuple(begin for prompt in PROMPTS if prompt.place == "turn" for begin in prompt.begins if begin)
_END_TURNS = tuple(prompt.ends for prompt in PROMPTS if "" in prompt.begins)
_BEGIN_SYSTEMS = tuple(begin for prompt in PROMPTS if prompt.place == "system" for begin in prompt.begins)
# No conversation is quoted without one of these; most short turns have none.
_OF_QUOTES = ("\n", "<", "[")
# Characters at either end of a turn that are looked at, of the text around a conversation, and of a clause.
WINDOW, MOST_ASKED, MOST_OF_CLAUSE = 4096, 2000, 200
# A clause of so few words, or letters of scripts without spaces, asks for nothing.
_MOST_WORDS, _MOST_LETTERS = 2, 5
_WORDS = tomllib.loads((Path(__file__).parent / "housekeeping_words.toml").read_text("utf-8"))


def _any_of(rows: Iterable[str]) -> str:
    """Return an expression of all `rows`, with the shared words in them."""
    text = "|".join(rows)
    for name, words in _WORDS["parts"].items():
        text = text.replace(f"<{name}>", f"(?:{'|'.join(words)})")
    return text


def _compiled(text: str) -> re.Pattern[str]:
    return re.compile(text, re.IGNORECASE | re.MULTILINE)


_FORMS = {name: _any_of(rows) for name, rows in _WORDS["conversation"].items()}
_ELEMENT = _compiled(rf"<({_FORMS['elements']})>")
_HEADING = _compiled(rf"^(?:#{{1,6}} |\*\*|[=-]{{3}} ?)?(?:{_FORMS['headings']}) ?(?:[:：]|\*\*[:：]?|$|[=-]{{3}})")
_SPEAKER = _compiled(
    rf"\W{{0,4}}(?:(?P<asker>{_FORMS['askers']})|{_FORMS['answerers']})(?: \d{{1,3}})?(?: ?\([^()\n]{{0,24}}\))?"
    r"(?:\W{0,3}[:：]|\W{0,2}[>\]]| (?:said|says|wrote|asked)\b)"
)
# What every line of a speaker begins with: a cheap test for most lines of other texts.
_LABEL = re.compile(r"\W{0,4}[^\W\d_][^:：>\]\n]{0,40}[:：>\]]|\W{0,4}\w{2,12} (?:said|says|wrote|asked)\b")
# A single message of a conversation that is named before.
_MESSAGE = _compiled(
    r"\W{0,4}(?:the )?(?:(?:user(?:['’]s)?|first|last|latest|initial|opening)[ _]){0,3}"
    r"(?:message|prompt|question|query|input|text)\W{0,3}[:：>]"
)
_NAMED = _compiled(_any_of(["<conversation>"]))
_JSON = re.compile(r"\[\s{0,8}\{[^{}\[\]]{0,400}?\"(?:role|from|speaker|author|sender)\"\s?:")
_JSON_ENDS = re.compile(r"\}\s{0,8}\]")
_KEYS = re.compile(
    r"[{\"]\s{0,8}\"?(?:title|tags|follow_?ups?|follow_up_questions|queries|query|emoji|keywords|suggestions)\"\s{0,4}:"
)
_QUOTED = re.compile(
    r"\"[^\"\n]{0,160}\s[^\"\n]{0,160}\"|“[^”\n]{0,160}”|«[^»\n]{0,160}»|「[^」\n]{0,160}」|`[^`\n]{0,160}`"
)
_SENTENCE = re.compile(r"[^.!?;:\n。！？；：؟]+(?:[?？؟])?")
_LETTERS = re.compile(r"[^\W\d_]")


class _Clauses(NamedTuple):
    """The expressions of the words around a conversation; `housekeeping_words.toml` says what each means."""

    things: re.Pattern[str]
    demands: re.Pattern[str]
    guides: re.Pattern[str]
    part_before: re.Pattern[str]
    of_else_after: re.Pattern[str]
    second: re.Pattern[str]
    later: re.Pattern[str]
    form: re.Pattern[str]
    negation: re.Pattern[str]
    between: re.Pattern[str]
    examples: re.Pattern[str]


@cache
def _clauses() -> _Clauses:
    """Compile the expressions, which few requests need."""
    text = {name: _any_of(rows) for name, rows in _WORDS["clauses"].items()}
    things, demands, whole, other = (
        _any_of(row for rows in _WORDS[name].values() for row in rows)
        for name in ("things", "demands", "guides", "guides_of_other_scripts")
    )
    return _Clauses(
        things=_compiled(things),
        demands=_compiled(demands),
        guides=_compiled(rf"\W*(?:(?:please|but|or) )?(?:{whole})(?:\b|['’])|\W*(?:{other})"),
        part_before=_compiled(rf"(?:{text['part_before']})(?: \w+){{0,2}}\s*$"),
        of_else_after=_compiled(text["of_else_after"]),
        second=_compiled(rf"\W*(?:{text['second']})\b"),
        later=_compiled(text["later"]),
        form=_compiled(rf"\W*(?:please )?(?:{text['form']})\b"),
        negation=_compiled(text["not"]),
        between=_compiled(text["and"]),
        examples=_compiled(
            rf"^\W{{0,6}}(?:good |bad |some )?(?:{text['examples']})\b[^\n]{{0,40}}\n"
            r"(?:[^\n#][^\n]{0,200}\n?){1,12}"
        ),
    )


class _Around(NamedTuple):
    """The text around a conversation."""

    text: str
    behind: str = ""
    """What stands behind its last blank line and may still be its own, where nothing marks its end."""


def front_end_of(messages: Sequence[Turn]) -> str | None:
    """Return the front end whose housekeeping a request is, `ANY_FRONT_END` where only what it asks says so, and None
    for every other request. The beginnings and ends of two messages are looked at."""
    last = messages[-1] if messages else None
    if last is None or last.role != "user":
        return None
    if last.text.startswith(_BEGIN_TURNS) or last.text[-WINDOW:].rstrip().endswith(_END_TURNS):
        return _client_of("turn", last.text)
    first = messages[0]
    if first.role == "system" and first.text.startswith(_BEGIN_SYSTEMS):
        return _client_of("system", first.text)
    head = last.text[:WINDOW]
    if not any(sign in head for sign in _OF_QUOTES):
        return None
    instructions = first.text if len(messages) == 2 and first.role == "system" else ""
    return ANY_FRONT_END if asks_for_housekeeping(last.text, instructions) else None


def _client_of(message: str, content: str) -> str | None:
    end = content[-WINDOW:].rstrip()
    for prompt in PROMPTS:
        if prompt.place == message and content.startswith(prompt.begins) and end.endswith(prompt.ends):
            return prompt.client
    return None


def asks_for_housekeeping(content: str, instructions: str = "") -> bool:
    """Return whether a turn has a conversation in it, and the text around that, with the `instructions` before the
    turn, asks for a title, tags, a line of summary, follow-up questions, queries or a completion, and for nothing
    else."""
    around = _around(content)
    if around is None or len(instructions) + len(around.text) + len(around.behind) > MOST_ASKED:
        return False
    before, words = f"{instructions}\n{around.text}", _clauses()
    asked = _only_asks(before, words)
    if asked is None or not around.behind:
        return asked is True
    if asked:
        clauses = (clause for sentence in _sentences(around.behind) for clause in words.between.split(sentence))
        return not any(_demands(clause, words) for clause in clauses)
    return _only_asks(around.behind, words) is True


def _only_asks(text: str, words: _Clauses) -> bool | None:
    """Return whether a text asks for a thing of housekeeping; None if it asks for anything else or is in doubt."""
    asked = _KEYS.search(text) is not None
    for sentence in _sentences(words.examples.sub("\n", _QUOTED.sub(" ", text))):
        asks = _asks(sentence, words)
        if asks is None:
            return None
        asked = asked or asks
    return asked


def _demands(clause: str, words: _Clauses) -> bool:
    return words.demands.search(clause) is not None and words.negation.search(clause) is None


def _asks(sentence: str, words: _Clauses) -> bool | None:
    """Return whether a sentence asks for a thing of housekeeping; None if it asks for anything else or is in doubt."""
    asks, form = False, words.form.match(sentence) is not None
    for clause in filter(_LETTERS.search, words.between.split(sentence)):
        if len(clause) > MOST_OF_CLAUSE or _demands(clause, words):
            return None
        if _asks_for_thing(clause, words):
            asks = True
        elif (asks and words.second.match(clause)) or not (form or _guides(clause, words)):
            return None
    if not asks and sentence[-1] in "?？؟":
        return None
    tasks = [rest for rest in words.later.split(sentence)[1:] if _LETTERS.search(rest)]
    return asks if all(words.things.search(rest) for rest in tasks) else None


def _asks_for_thing(clause: str, words: _Clauses) -> bool:
    thing = words.things.search(clause)
    if thing is None or words.part_before.search(clause[: thing.start()]):
        return False
    return words.of_else_after.match(clause[thing.end() :]) is None


def _guides(clause: str, words: _Clauses) -> bool:
    """Return whether a clause says no more than how the answer has to look, or what the conversation is."""
    said = clause.split()
    if len(said) <= _MOST_WORDS and (clause.isascii() or all(len(word) <= _MOST_LETTERS for word in said)):
        return True
    return words.guides.match(clause) is not None or words.negation.search(clause) is not None


def _sentences(text: str) -> Iterator[str]:
    """Yield the sentences of a text, each with its question mark."""
    for sentence in _SENTENCE.findall(text):
        if _LETTERS.search(sentence):
            yield sentence.strip()


def _around(content: str) -> _Around | None:
    """Return the text around the conversation that a turn quotes, None where it quotes none."""
    head, tail = content[:WINDOW], content[-WINDOW:]
    element = _ELEMENT.search(head) if "<" in head else None
    if element is not None:
        return _Around(f"{head[: element.start()]}\n{_after_element(tail, element[1])}")
    messages = _JSON.search(head) if "[" in head else None
    if messages is not None:
        *_, end = (0, *(match.end() for match in _JSON_ENDS.finditer(tail)))
        return _Around(f"{head[: messages.start()]}\n{tail[end:]}")
    begin = _first_label(head)
    if begin is None:
        return None
    heading = _HEADING.search(head[:begin])
    before = head[: begin if heading is None else heading.start()]
    return _Around(before, _last_paragraph(tail[max(0, begin - max(0, len(content) - WINDOW)) :]))


def _after_element(tail: str, name: str) -> str:
    """Return what follows the end of an element, all of `tail` where it has no end."""
    start = tail.lower().rfind(f"</{name.lower()}>")
    return tail[start + len(name) + 3 :] if start >= 0 else tail


def _first_label(head: str) -> int | None:
    """Return where the first line of a speaker begins, if one who asks and one who answers have lines; else where a
    message of a conversation that is named before begins, or None."""
    speaking, speakers, message, offset = None, set(), None, 0
    for line in head.split("\n") if "\n" in head else ():
        if _LABEL.match(line):
            if speaker := _SPEAKER.match(line):
                speaking = offset if speaking is None else speaking
                speakers.add(speaker["asker"] is None)
            elif message is None and _MESSAGE.match(line):
                message = offset
        offset += len(line) + 1
    if len(speakers) == 2:
        return speaking
    return message if message is not None and _NAMED.search(head[:message]) else None


def _last_paragraph(conversation: str) -> str:
    """Return the last paragraph of a conversation, "" where a speaker's label begins it."""
    *earlier, last = conversation.rstrip().split("\n\n")
    return last if earlier and not _SPEAKER.match(last) else ""
