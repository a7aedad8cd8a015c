"""Recognise the housekeeping of chat front ends: a title, tags, follow-up questions or search queries for a
conversation, which its user never asked for.

Front ends send these as ordinary requests, three or four for each turn of a user, with the conversation in them: only
their own wording tells them from a user's request. Known prompts are rows of `tiers/dialects/quirks/clients.toml`,
matched as a whole beginning and, where the prompt has one, end, never by a search in the conversation that stands
between. Others are known by what they ask: the text around a conversation asks for one of those things for that
conversation, and for nothing else. A request that quotes such a prompt, goes on after it, or has its headings alone is
none.
"""

import re
from collections.abc import Sequence

from tiers.dialects.quirks import client_rows
from tiers.tier import ChatMessage

# What is recognised by what it asks has this in place of a client's name.
ANY_FRONT_END = "front-end"


PROMPTS = client_rows().prompts
_BEGIN_TURNS = tuple(begin for prompt in PROMPTS if prompt.place == "turn" for begin in prompt.begins if begin)
_END_TURNS = tuple(prompt.ends for prompt in PROMPTS if "" in prompt.begins)
_BEGIN_SYSTEMS = tuple(begin for prompt in PROMPTS if prompt.place == "system" for begin in prompt.begins)


def front_end_of(messages: Sequence[ChatMessage]) -> str | None:
    """Return the front end whose housekeeping a request is, `ANY_FRONT_END` where only what it asks says so, and None
    for every other request. The beginnings and ends of two messages are looked at."""
    last = messages[-1] if messages else None
    if last is None or last.role != "user":
        return None
    if last.content.startswith(_BEGIN_TURNS) or last.content[-WINDOW:].rstrip().endswith(_END_TURNS):
        return _client_of("turn", last.content)
    first = messages[0]
    if first.role == "system" and first.content.startswith(_BEGIN_SYSTEMS):
        return _client_of("system", first.content)
    return ANY_FRONT_END if asks_for_housekeeping(last.content) else None


def _client_of(message: str, content: str) -> str | None:
    end = content[-WINDOW:].rstrip()
    for prompt in PROMPTS:
        if prompt.place == message and content.startswith(prompt.begins) and end.endswith(prompt.ends):
            return prompt.client
    return None


# Characters at either end of a turn that are looked at, and of the text around a conversation.
WINDOW, MOST_ASKED = 4096, 3000
# Where a conversation begins: an element, a heading of its own, or lines of both speakers.
_OPENS = re.compile(
    r"<(chat_?history|conversation|messages|transcript|dialogue|chat)>|"
    r"^(?:#{1,6} |\*\*)?(?:chat history|conversation(?: history)?|transcript|messages|dialogue):?(?:\*\*)?:?[ \t]*$",
    re.IGNORECASE | re.MULTILINE,
)
_SPEAKER = re.compile(r"^\W{0,4}(user|human|assistant|ai|bot|model)\W{0,4}:", re.IGNORECASE | re.MULTILINE)
# Most turns lack a word of either kind and need only these searches.
_THINGS = ("title", "tag", "emoji", "follow", "quer")
_CONVERSATIONS = ("chat", "conversation", "dialogue", "discussion", "messages", "transcript", "thread", "session")
# What is asked for, of what. Bounded, so that the search is linear.
_THING = r"\b(?:title|tags?|emoji|follow-?ups?|(?:search )?quer(?:y|ies))\b"
_OF_WHAT = r"\b(?:chat|conversation|dialogue|discussion|messages|transcript|thread|session)\b"
_ASKS = re.compile(
    r"\b(?:generate|create|write|provide|suggest|propose|give|produce|come up with|summari[sz]e)\b"
    rf"[^.!?\n]{{0,80}}?(?:{_THING}[^!?\n]{{0,160}}?{_OF_WHAT}|{_OF_WHAT}[^.!?\n]{{0,80}}?{_THING})",
    re.IGNORECASE,
)
_KEYS = re.compile(r"\{\s{0,8}\"(?:title|tags|follow_?ups|queries|emoji)\"\s{0,4}:")
# What asks for something else as well.
_ASKS_MORE = re.compile(
    r"\b(?:prove|derive|solve|implement|debug|refactor|translate|calculate|compute|essay|report|article|program|plan|"
    r"(?:write|fix|explain|give) (?:the |some |any )?code|explain (?:how|why|what|the)|evaluate|critique|review|"
    r"compare|(?:answer|reply to|respond to) (?:the|its|every|each|all)|in detail|step by step|afterwards|after that|"
    r"then (?:write|give|answer|list|say|do|make))\b",
    re.IGNORECASE,
)


def asks_for_housekeeping(content: str) -> bool:
    """Return whether a turn has a conversation in it, and the text around that asks for a title, tags, follow-up
    questions or search queries for it, and for nothing else."""
    head = content[:WINDOW]
    lower = head.lower()
    if not (any(word in lower for word in _THINGS) and any(word in lower for word in _CONVERSATIONS)):
        return False
    opening = _OPENS.search(head)
    if opening is None:
        speakers = list(_SPEAKER.finditer(head))
        if len({one[1].lower() in ("user", "human") for one in speakers}) < 2:
            return False
        before, after = head[: speakers[0].start()], ""
    else:
        before, after = head[: opening.start()], _after(content, opening[1])
    around = f"{before}\n{after}"
    if len(around) > MOST_ASKED or _ASKS_MORE.search(around):
        return False
    return _ASKS.search(around) is not None or _KEYS.search(around) is not None


def _after(content: str, element: str | None) -> str:
    """Return what follows the conversation: after the end of its element, else nothing."""
    if element is None:
        return ""
    tail = content[-WINDOW:]
    end = f"</{element.lower()}>"
    place = tail.lower().rfind(end)
    return tail[place + len(end) :] if place >= 0 else tail
