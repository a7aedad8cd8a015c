"""The classifier's input for one request: the last user turn, with earlier ones where it goes on with them, and counts
of the rest."""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice

import msgspec

from classifier.features.client_text import CLIENTS_OPENINGS, CLIENTS_RULES, END_OF_EXAMPLES, users_text
from classifier.features.follow_up import in_context
from classifier.features.router_instructions import without_router_instructions
from classifier.features.stray_text import without_stray_text
from inference_core.tokenization.prompt_size import FITTED_CHARS_PER_TOKEN, FITTED_TOKENS_PER_MESSAGE

HEAD_WORDS = 192
TAIL_WORDS = 64
# Words are rarely longer; bounds the work on text without spaces (base64, Chinese).
CHARS_PER_WORD = 8
# What a plan mode asks for, in words that the classifier was trained on.
PLAN_FIRST = "Analyse the code and write a step-by-step plan with trade-offs and risks before any change."
# The newest turns of the user's role that are looked at; clients write many that have no word of the user.
MOST_LOOKED_AT = 64


class RoutingInput(msgspec.Struct, frozen=True, kw_only=True):
    """One request as the outcome model sees it (docs/routing.md).

    `turn`: last user turn without its client's text (`classifier.features.client_text`), instructions to the router
    (`classifier.features.router_instructions`) and surrounding white space, after the earlier turns that it goes on
    with (`classifier.features.follow_up`), cut by `cut_turn`; `turn_chars`: its characters before the cut. `key`: the
    caller's key, which has its own labels, and `tenant`, whose it is; "" without one. `app`: hash of the system prompt
    ("" without one), which distinguishes applications without storing their text. `prompt_tokens`: estimate over all
    messages; `max_tokens` None means unlimited. `previous_tiers`: tiers that answered this conversation so far, oldest
    first.
    """

    turn: str
    turn_chars: int
    key: str = ""
    tenant: str = ""
    app: str = ""
    user_turns: int = 1
    assistant_turns: int = 0
    prompt_tokens: int = 0
    max_tokens: int | None = None
    has_tools: bool = False
    has_schema: bool = False
    previous_tiers: tuple[int, ...] = ()


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

    System and developer messages enter only through their hash, assistant and tool messages only as counts, and images,
    audio and files only as `media_tokens` of `prompt_tokens`. `plan_mode`: a plan is asked for, which the words of the
    turn need not say.
    """
    system: list[str] = []
    asked: list[str] = []
    chars = user_turns = assistant_turns = 0
    for message in messages:
        role, content = message["role"], message["content"]
        chars += len(content)
        if role == "user":
            asked.append(content)
            user_turns += 1
        elif role == "assistant":
            assistant_turns += 1
        elif role in ("system", "developer"):
            system.append(content)
    turn = _turn(asked)
    if plan_mode and turn:
        turn = f"{PLAN_FIRST}\n{turn}"
    return RoutingInput(
        turn=cut_turn(turn),
        turn_chars=len(turn),
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
    )


def _turn(asked: Sequence[str]) -> str:
    """Return what the newest of the user's turns `asked` says, after those before it that it goes on with. Turns that
    are their client's alone are none of the user's."""
    own = _own_turns(asked)
    return in_context(own) if len(asked) > 1 else next(own, "")


def _own_turns(asked: Sequence[str]) -> Iterator[str]:
    """The user's turns from the newest on, each without what is not the user's request."""
    for content in islice(reversed(asked), MOST_LOOKED_AT):
        said = content.strip()
        if said.startswith(END_OF_EXAMPLES):
            return
        has_rules = len(asked) > 1 and any(rules in said for rules in CLIENTS_RULES)
        if has_rules or said.startswith(CLIENTS_OPENINGS) or said.endswith(">"):
            said = users_text(said)
        if said:
            yield without_stray_text(without_router_instructions(said).strip())


def routing_input_of_text(text: str) -> RoutingInput:
    """Return the routing input of a bare prompt (the completions endpoint, `aio route`, training rows)."""
    return routing_input([{"role": "user", "content": text}])


def app_of(system: str) -> str:
    """Return the hash of a system prompt, "" without one."""
    return hashlib.blake2b(system.encode(errors="replace"), digest_size=8).hexdigest() if system else ""
