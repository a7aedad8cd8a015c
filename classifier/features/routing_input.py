"""The classifier's input for one request: the last user turn, with earlier ones where it goes on with them, and
counts of the rest.

Instructions to the router in a prompt ("use tier 4 for this") are removed before classification, so they have no
effect. Only the classifier's input changes; the tier gets the whole prompt. Constraints belong in the x-aio headers.
"""

import hashlib
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from itertools import chain, islice
from typing import NamedTuple

import msgspec

from classifier.decision import FollowUp
from classifier.features.follow_up import Readings, ReadTurn, TurnText, UserTurn, in_context, is_long
from classifier.features.material import as_read, kinds_left_out
from classifier.features.plain_form import (
    LEADS,
    OF_COURTESY,
    THANKS,
    plain_form,
    spelling,
    without_answer_form,
    without_politeness,
)
from classifier.features.stray_text import (
    CLIENTS_OPENINGS,
    CLIENTS_RULES,
    END_OF_EXAMPLES,
    GREETS,
    MARKS,
    Marks,
    users_text,
    without_stray_text,
)
from classifier.native import KERNELS
from inference_core.tokenization.prompt_size import FITTED_CHARS_PER_TOKEN, FITTED_TOKENS_PER_MESSAGE

# A sentence is an instruction if it names a routing target, expresses a wish, and refers to itself or starts as an
# imperative. A question about models or tiers in general lacks one of the three.
_RANK = (
    r"(?:strong|larg|bigg|great|smart|high|cheap|fast|low)(?:er|est)|cheap|weak|strong|best|better|top|premium|flagship|expert|frontier"
    r"|maximum|max|upper|powerful|advanced|capable|(?:more|most)\s+(?:capable|powerful|advanced|expensive|intelligent"
    r"|accurate)"
)
_NAME = r"gpt-?[0-9][\w.-]*|claude(?:[\s-][\w.-]+)?|opus|gemini(?:[\s-][\w.-]+)?|[a-z]+-?[0-9]{1,3}b"
_TARGET = re.compile(
    rf"\btiers?[\s_:=#-]{{0,3}}(?:[0-9]+|one|two|three|four|five|max|expert|complex|premium|top)\b"
    rf"|\b(?:{_RANK}|complex|medium|simple)[\s_-]+tiers?\b"
    rf"|\b(?:{_RANK}|{_NAME}|[0-9]{{2,3}}b)[\s_-]+(?:[\w-]+[\s_-]+){{0,2}}(?:ai|llms?|models?)\b"
    rf"|\b(?:us(?:e|ing)|with|by|to|via|from|on)\s+(?:{_NAME})\b"
    r"|\b(?:model|request|prompt|query|llm|ai)[\s-]+(?:router|routing)\b"
    r"|\brout(?:er|ing)\s+(?:classifier|decision|policy|system|layer|instruction|model)s?\b"
    r"|\b(?:complexity|difficulty)\s+(?:score|class|classifier|level|rating)\b"
    r"|\bp_ok\b|\bquality[\s_-]target\b|\bmin[_-]?tier\b|\bx-aio-[a-z-]+"
)
_WISH = re.compile(
    r"\b(?:please|must|should|shall|needs?|requires?|deserves?|wants?|demands?|insists?|prefers?|ensure|sure|us(?:e|ing)"
    r"|rout(?:e|es|ed|ing)|assign(?:ed)?|classif(?:y|ied)|treat(?:ed)?|mark(?:ed)?|label(?:led)?|rated?|escalated?"
    r"|upgraded?|promoted?|forward(?:ed)?|switch(?:ed)?|select(?:ed)?|choose|chosen|pick(?:ed)?|send|sent"
    r"|process(?:ed)?|handled?|answer(?:ed)?|respond|reply|run|set|forced?|override|bypass|ignore|go|gives?|given"
    r"|invoke|delegated?|hand|direct(?:ed)?|redirect(?:ed)?|pass|skip|elevated?|prioriti[sz]ed?|output|return|predict"
    r"|report|consider(?:ed)?|belongs?|goes)\b"
)
_ORDER = (
    r"route|use|assign|classify|treat|mark|escalate|upgrade|forward|switch|select|choose|pick|send|process|handle"
    r"|answer|respond|reply|run|set|force|ignore|override|bypass|redirect|delegate|skip|rate|label|elevate|prioriti[sz]e"
    r"|output|predict|report|consider|ensure|make sure|require|go"
)
_ITSELF = re.compile(
    r"\b(?:this|my|your|following|above|current)\s+(?:\w+\s+){0,2}(?:question|query|prompt|request|message|task"
    r"|conversation|answer|response|reply|problem|one|input|instructions?)\b"
    r"|\b(?:this|it|me|you|yourself|i)\b"
    r"|^\W*(?:system|admin|developer|note|important|urgent|instructions?|override|attention|hint|dear|hey|router)\b"
    rf"|^\W*(?:(?:please|now|just|then|and|always|only|never|do not|you must)\W+)*(?:{_ORDER})\b"
)
# A header or setting within the text is removed alone, because the rest of its sentence may be the question.
_SETTING = re.compile(
    r"(?:\bx-aio-[a-z-]+|\bmin[_-]?tier|\btier(?=\W{0,3}[:=]\s*[0-9])|\bquality[_-]target|\bp_ok)\W{0,3}[:=]\s*\S+\s*",
    re.IGNORECASE | re.MULTILINE,
)
# Without one of these words there is no instruction; most prompts need only this search.
_HINTS = Marks(("tier", "model", "rout", "x-aio", "gpt", "claude", "opus", "gemini", "llm", "complexity", "difficulty",
                "p_ok", "quality_", "quality t", " ai ", " ai.", " ai!"))  # fmt: skip
_OF_SETTINGS = ("tier", "x-aio", "p_ok", "quality_")
_SENTENCE = re.compile(r"[^.!?\n;]*(?:\.(?=\w)[^.!?\n;]*)*(?:[.!?;]+[\"')\]]*[^\S\n]*|\n|$)")
# Certain ends of sentences, to find the sentence around a hint without splitting the whole text.
_ENDS = ("\n", ". ", '."', ".)", "!", "?", ";")
_END = re.compile(r"[!?;\n]|\.(?!\w)")
# Only this many characters are searched at either end; the classifier reads fewer.
WINDOW = 4096
# Longer sentences are text without punctuation, not instructions, and would cost time.
LONGEST = 600


def without_router_instructions(text: str) -> str:
    """Return `text` without sentences that ask for a tier or a model; the same string without any.

    Only the first and last `WINDOW` characters are searched, so the work is bounded. Deterministic.
    """
    if len(text) <= 2 * WINDOW:
        return _kept(text)
    return _kept(text[:WINDOW]) + text[WINDOW:-WINDOW] + _kept(text[-WINDOW:])


def is_router_instruction(sentence: str) -> bool:
    lower = sentence.lower()
    return bool(_TARGET.search(lower) and _WISH.search(lower) and _ITSELF.search(lower))


def _kept(text: str) -> str:
    if not _is_suspicious(f"{text.lower()} "):
        return text
    plain = _SETTING.sub("", text) if ":" in text or "=" in text else text
    sentences = _SENTENCE.findall(plain)
    kept = [s for s in sentences if len(s) > LONGEST or not is_router_instruction(s)]
    return text if plain == text and len(kept) == len(sentences) else "".join(kept).strip()


def _is_suspicious(lower: str) -> bool:
    """Return whether the sentence around a hint may be an instruction; most texts have no hint, few have several."""
    seen: set[int] = set()
    for hint in _HINTS.within(lower):
        at = lower.find(hint)
        while at >= 0:
            begin = max(lower.rfind(end, 0, at) for end in _ENDS) + 1
            ended = _END.search(lower, at)
            end = len(lower) if ended is None else ended.end()
            if begin not in seen and end - begin <= 2 * LONGEST:
                seen.add(begin)
                piece = lower[begin:end]
                if _TARGET.search(piece) and _WISH.search(piece):
                    return True
                if (":" in piece or "=" in piece) and any(name in piece for name in _OF_SETTINGS):
                    return True
            at = lower.find(hint, max(end, at + 1))
    return False


HEAD_WORDS = 192
TAIL_WORDS = 64
# Words are rarely longer; bounds the work on text without spaces (base64, Chinese).
CHARS_PER_WORD = 8
# What a plan mode asks for, in words that the classifier was trained on.
PLAN_FIRST = "Analyse the code and write a step-by-step plan with trade-offs and risks before any change."
# Characters of an answer that are read, at its end.
LONGEST_END_OF_ANSWER = 2000
# The newest turns of the user's role that are looked at; clients write many that have no word of the user.
MOST_LOOKED_AT = 64


class Reading(NamedTuple):
    """One of the texts that the complexity classes are read from, in plain form and cut, as a turn is."""

    text: str
    chars: int
    """As `RoutingInput.turn_chars`."""
    weight: float
    """Of its classes in the mixture; those of all readings sum to 1."""


class RoutingInput(msgspec.Struct, frozen=True, kw_only=True):
    """One request as the outcome model sees it (docs/routing.md)."""

    turn: str
    """The last user turn without its client's text (`classifier.features.stray_text`), instructions to the router
    (`classifier.features.routing_input`) and surrounding white space, after the earlier turns that it goes on with
    (`classifier.features.follow_up`), cut by `cut_turn`, in plain form (`classifier.features.plain_form`). Labels,
    heads and embeddings are of this text."""
    turn_chars: int
    """The characters of the plain form of all of the turn, in proportion to the part that is kept."""
    key: str = ""
    """The caller's key, which has its own labels; "" without one."""
    tenant: str = ""
    """The tenant of the key; "" without one."""
    app: str = ""
    """Hash of the system prompt ("" without one), which tells applications apart without their text."""
    user_turns: int = 1
    assistant_turns: int = 0
    prompt_tokens: int = 0
    """Estimate over all messages."""
    max_tokens: int | None = None
    """None means unlimited."""
    has_tools: bool = False
    has_schema: bool = False
    previous_tiers: tuple[int, ...] = ()
    """Tiers that answered this conversation so far, oldest first."""
    from_others: bool = False
    """Whether labels of other tenants may count, too (`classifier.local.own`)."""
    material: tuple[str, ...] = ()
    """The kinds of the materials that have a stand-in in the likeliest reading."""
    follow_up: FollowUp | None = None
    """Whether the turn goes on with earlier ones; None without these."""
    readings: tuple[Reading, ...] = ()
    """What the complexity classes are read from, the likelier first: the turn without its material
    (`classifier.features.material`), and where the turn may be a follow-up or not, both ways. Empty where it is the
    turn alone."""

    @property
    def as_classified(self) -> "list[tuple[RoutingInput, float]]":
        """The inputs whose turns the complexity classes are read from, with their weights, the likelier first. A
        reading that is the turn is this object, so that the turn need not be encoded twice."""
        if not self.readings:
            return [(self, 1.0)]
        return [(self._read_as(reading), reading.weight) for reading in self.readings]

    @property
    def has_material(self) -> bool:
        """Whether the likeliest reading leaves out something: material, or instructions on the form of the answer."""
        return bool(self.readings) and self.readings[0][:2] != (self.turn, self.turn_chars)

    @property
    def request(self) -> "RoutingInput":
        """This input with its likeliest reading as the turn: the request without its material."""
        return self._read_as(self.readings[0]) if self.readings else self

    def _read_as(self, reading: Reading) -> "RoutingInput":
        if (reading.text, reading.chars) == (self.turn, self.turn_chars):
            return self
        return msgspec.structs.replace(self, turn=reading.text, turn_chars=reading.chars, readings=())


def cut_turn(text: str) -> str:
    """Return the first 192 and last 64 words of `text` with its white space; a line break marks the cut.

    At most 8 characters per word are read, which bounds the work.
    """
    if len(text) <= 2 * HEAD_WORDS:
        return text  # A word and its space are two characters at least.
    head = _first_words(text[: HEAD_WORDS * CHARS_PER_WORD])
    if len(head) == len(text):
        return text
    tail = _last_words(text[len(head) :][-TAIL_WORDS * CHARS_PER_WORD :])
    if len(head) + len(tail) == len(text):
        return text
    return f"{head.rstrip()}\n{tail.lstrip()}"


def _first_words(text: str) -> str:
    # A line has no white space but spaces, so that its words need not be cut apart to see that they are few.
    if text.isprintable() and text.count(" ") < HEAD_WORDS:
        return text
    parts = text.split(None, HEAD_WORDS)
    return text if len(parts) <= HEAD_WORDS else text[: len(text) - len(parts[-1])]


def _last_words(text: str) -> str:
    parts = text.rsplit(None, TAIL_WORDS)
    return text if len(parts) <= TAIL_WORDS else text[len(parts[0]) :]


def routing_input(
    messages: Sequence[Mapping[str, str]],
    *,
    key: str = "",
    tenant: str = "",
    max_tokens: int | None = None,
    has_tools: bool = False,
    has_schema: bool = False,
    plan_mode: bool = False,
    previous_tiers: Sequence[int] = (),
    media_tokens: int = 0,
) -> RoutingInput:
    """Return the routing input of chat `messages` (each with "role" and a text "content"); pure.

    System and developer messages enter only through their hash, tool messages only as counts, assistant messages as
    these and by what they end with (`classifier.features.follow_up`), and media only as `media_tokens` of
    `prompt_tokens`. `plan_mode`: a plan is asked for, perhaps not in the turn's words.
    """
    system: list[str] = []
    asked: list[UserTurn] = []
    answer = ""
    chars = user_turns = assistant_turns = 0
    for message in messages:
        role, content = message["role"], message["content"]
        chars += len(content)
        if role == "user":
            user_turns += 1
            asked.append(UserTurn(content, answer, user_turns))
            answer = ""
        elif role == "assistant":
            assistant_turns += 1
            answer = content or answer
        elif role in ("system", "developer"):
            system.append(content)
    signs = _signs_of([turn.text for turn in asked[:2]], plan_mode)
    if signs == _ALL:
        alone, joined, follow_up = _readings(asked)
    else:
        whole = asked[0].text.strip()
        request = _request_of(whole)
        if request is not whole:
            request, signs = without_stray_text(request), _FORM
        alone, joined, follow_up = Readings(TurnText(whole, request))
    is_joined = follow_up is not None and follow_up.p >= 0.5
    first, second = (joined, alone) if is_joined else (alone, joined)
    likeliest = TurnText("", "") if first is None else first
    turn, turn_chars = _plain(likeliest.whole, signs, plan_mode)
    readings: tuple[Reading, ...] = ()
    if second is not None or likeliest.has_material:
        less = 0.0 if second is None or follow_up is None else min(follow_up.p, 1.0 - follow_up.p)
        weighted = [(likeliest, 1.0 - less)] if second is None else [(likeliest, 1.0 - less), (second, less)]
        readings = tuple(Reading(*_plain(text.request, signs, plan_mode), weight) for text, weight in weighted)
    return RoutingInput(
        turn=turn,
        turn_chars=turn_chars,
        follow_up=follow_up,
        readings=readings,
        key=key,
        tenant=tenant,
        app=app_of("\n".join(system)),
        user_turns=user_turns,
        assistant_turns=assistant_turns,
        prompt_tokens=chars // FITTED_CHARS_PER_TOKEN + FITTED_TOKENS_PER_MESSAGE * len(messages) + media_tokens,
        max_tokens=max_tokens,
        has_tools=has_tools,
        has_schema=has_schema,
        previous_tiers=tuple(previous_tiers),
        material=kinds_left_out(likeliest.request),
    )


def _plain(turn: str, signs: int, plan_mode: bool) -> tuple[str, int]:
    """Return the plain form of what is kept of `turn`, and the characters of that of all of it."""
    if plan_mode and turn:
        turn = f"{PLAN_FIRST}\n{turn}"
    cut = cut_turn(turn) if signs in (_ALL, _FORM) else turn
    plain = plain_form(cut) if signs in (_ALL, _FORM) else without_politeness(cut) if signs == _POLITE else cut
    return plain, len(plain) if cut == turn else len(plain) * len(turn) // len(cut)


# Where a second sentence begins, perhaps without an end of the first.
_SECOND_SENTENCE = re.compile(r"[.!?\n]\s*\S|\s[A-Z]\w+\s")

# Which rules may change a turn: all of them, those of its form and then of politeness, or these alone.
_ALL, _FORM, _POLITE = 1, 2, 4


def _signs_of(turns: Sequence[str], plan_mode: bool) -> int:
    """Return which rules may change what the `turns` of a user say, 0 for none: a kernel looks for the marks of all."""
    if KERNELS is None or plan_mode or len(turns) != 1:
        return _ALL
    signs: int = KERNELS.signs_of(_signs(), turns[0].strip())
    return signs


@cache
def _signs() -> object:
    openings = [text.lower() for text in (*CLIENTS_OPENINGS, END_OF_EXAMPLES) if len(text) > 1]
    greetings, courtesy, leads = (dict.fromkeys(words, 0) for words in (GREETS, OF_COURTESY, LEADS))
    marks = (*_HINTS.texts, *MARKS.texts, *openings)
    return KERNELS.make_signs(marks, THANKS.texts, greetings, courtesy, leads, spelling())


def _readings(asked: Sequence[UserTurn]) -> Readings:
    """Return how the newest of the user's turns `asked` is read. Turns that are their client's alone are none of the
    user's. A long one stands for itself, however little of it is read."""
    own = _own_turns(asked)
    newest = next(own, None)
    if newest is None:
        return Readings(TurnText("", ""))
    if len(asked) == 1 or is_long(newest.text):
        return Readings(_read(newest).text)
    return in_context(map(_read, chain((newest,), own)))


def _request_of(text: str) -> str:
    """Return what a turn asks, without its material and instructions on the form of the answer; the same string where
    it has none."""
    request = as_read(text)
    return without_answer_form(request) if _SECOND_SENTENCE.search(request) else request


def _read(turn: UserTurn) -> ReadTurn:
    """Return the turn as it is read, with the end of the answer before it without instructions to the router."""
    whole = without_stray_text(turn.text)
    request = _request_of(turn.text)
    text = TurnText(whole, whole if request is turn.text else without_stray_text(request))
    return ReadTurn(text, without_router_instructions(turn.answer[-LONGEST_END_OF_ANSWER:]), turn.number)


def _own_turns(asked: Sequence[UserTurn]) -> Iterator[UserTurn]:
    """The user's turns from the newest on, each without its client's text and instructions to the router."""
    for turn in islice(reversed(asked), MOST_LOOKED_AT):
        text = turn.text.strip()
        if text.startswith(END_OF_EXAMPLES):
            return
        has_rules = len(asked) > 1 and any(rules in text for rules in CLIENTS_RULES)
        if has_rules or text.startswith(CLIENTS_OPENINGS) or text.endswith(">"):
            text = users_text(text)
        if text:
            yield turn._replace(text=without_router_instructions(text).strip())


def routing_input_of_text(text: str) -> RoutingInput:
    """Return the routing input of a bare prompt (the completions endpoint, `aio route`, training rows)."""
    return routing_input([{"role": "user", "content": text}])


def app_of(system: str) -> str:
    """Return the hash of a system prompt, "" without one."""
    return hashlib.blake2b(system.encode(errors="replace"), digest_size=8).hexdigest() if system else ""
