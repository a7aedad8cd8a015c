"""Which tiers answered a conversation so far, and how an agent's session stands, remembered for a while by digests: no
text is kept, and no client is needed.

A client's session has its name within its caller's key: ids are hints, and no key reaches another's sessions. In
Redis the tiers are known to all processes, so that any goes on with what another one answered (SPEC GW-19).
"""

import hashlib
import math
import mmap
import secrets
import time
from array import array
from base64 import b64decode, b64encode
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from itertools import chain
from typing import Any, NamedTuple

import msgspec
import numpy as np

from classifier.features.stray_text import CLIENTS_OPENINGS, users_text
from gateway.base.inference_request import ClientTurn, InferenceRequest
from gateway.base.stores.redis_store import Call, RedisScripts, RedisStore, RedisUnavailableError, script
from gateway.inference.agent_session import Exit, Session, decode_session, encode_session
from gateway.inference.clients import RULES
from inference_core.tokenization.prompt_size import FITTED_CHARS_PER_TOKEN, FITTED_TOKENS_PER_MESSAGE
from tiers.catalog.catalog import Catalog
from tiers.catalog.pricing import reread_usd, reuse_usd
from tiers.catalog.tier_spec import TierSpec
from tiers.conversation import Turn

DIGEST_BYTES = 16


def session_digest(turn: ClientTurn, key_id: str | None) -> bytes | None:
    """Return the digest of the session of `turn`, or of its agent's own where it has one, for this key; None without
    an id. The key's pseudonym is part of it, so that callers never share a session whatever ids they send."""
    if turn.session is None:
        return None
    parts = (key_id or "", turn.client, turn.session, turn.agent or "")
    named = framed(part.encode(errors="replace") for part in parts)
    return hashlib.blake2b(named, digest_size=DIGEST_BYTES, person=b"aio-session-v1").digest()


def framed(parts: Iterable[bytes]) -> bytes:
    """Return the parts one after another, each after its length, so that no two lists run into the same bytes."""
    return b"".join(chain.from_iterable((len(part).to_bytes(8, "little"), part) for part in parts))


def session_digests(session: str, key_id: str | None) -> list[bytes]:
    """Return the digests that a session of this id has at this key, one for each client that may have named it; "" is
    a client that no rule knows, which sends `x-aio-conversation`."""
    turns = (ClientTurn(client=name, session=session) for name in (*(rule.name for rule in RULES), ""))
    return [digest for turn in turns if (digest := session_digest(turn, key_id)) is not None]


PREFIX = "aio:turns:"
_GET = script('return redis.call("GET", KEYS[1])')
_SET = script('return redis.call("SET", KEYS[1], ARGV[1], "PX", ARGV[2])')


class Noted(NamedTuple):
    """What is known of a conversation: its tiers, oldest first, and the encoded session, b"" for none."""

    tiers: tuple[int, ...] = ()
    session: bytes = b""


class SharedTurns:
    """Tiers and sessions by digest, for the seconds noted for each; while Redis is down nothing is found or noted.

    Digests of all processes must be made with the same secret. A value is one digit per tier, oldest first, and the
    session after a colon, in base64, if there is one.
    """

    def __init__(self, store: RedisStore) -> None:
        self._scripts = RedisScripts(store)

    async def get(self, digest: bytes) -> Noted:
        """What is noted for `digest`; empty if there is nothing."""
        try:
            stored = await self._scripts.run(Call(_GET, [PREFIX + digest.hex()], []))
        except RedisUnavailableError:
            return Noted()
        if not isinstance(stored, bytes):
            return Noted()
        digits, _, session = stored.partition(b":")
        return Noted(tuple([digit - ord("0") for digit in digits]), b64decode(session))

    def note(self, digest: bytes, noted: Noted, seconds: float) -> None:
        """Keep what is `noted` for `digest`, without waiting for it."""
        value = "".join(map(str, noted.tiers))
        if noted.session:
            value += f":{b64encode(noted.session).decode()}"
        self._scripts.put(Call(_SET, [PREFIX + digest.hex()], [value, max(1, round(seconds * 1e3))]))

    async def flush(self) -> None:
        """Wait until everything is noted."""
        await self._scripts.flush()


# Room for 150,000 conversations (SPEC GW-19), also where each has an id and was asked again lately.
MOST = 524_288
SECONDS = 3600.0
# An earlier turn is remembered this much longer, for an answer that is asked for once more.
REPEAT_SECONDS = 300.0
COMMON_SECRET = b"AIO conversations, version 1"
# So many of a digest's tiers are kept, the newest.
TIERS_KEPT = 8
# Sessions of agents that are kept, of about 150 bytes each.
MOST_SESSIONS = 20_000
# What is noted of a private session, in place of tiers.
_PRIVATE = (1,)
# Which slots a digest may have; more of them forget more evenly and take longer to look through.
_WAYS = 64


class History(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of a conversation before its newest turn."""

    tiers: tuple[int, ...] = ()
    """The tiers that answered, oldest first; empty if not remembered."""
    tokens: int = 0
    """Estimate of its length up to the last answer, which the tier that gave it has read."""
    in_tool_loop: bool = False
    """Whether the newest turn brings the results of tool calls."""
    session: Session | None = None
    """The session of an agent; None if not remembered."""
    key: bytes = b""
    """The key by which the conversation was looked up first, or would be."""


_NO_HISTORY = History()


class Conversations:
    """The tiers of the conversations that this process answered lately: at most `most`, each for `seconds` since its
    last turn, which is about as long as its keys and values stay cached.

    A conversation is known by the id that its caller gives (`x-aio-conversation`), or else by a keyed digest of the
    messages before its last answer, which its next request repeats. So an edited answer changes nothing, and an
    edited question starts a new one. Digests include the caller's key, so callers never share conversations.

    A step of an agent's session is known by its client's id of it, if there is one, else by the digest. How sessions
    stand is remembered of the last `MOST_SESSIONS` digests.

    With `shared`, processes go on with each other's conversations. Their digests then have no secret of their own, like
    those of the shared response cache.
    """

    def __init__(
        self,
        most: int = MOST,
        seconds: float = SECONDS,
        clock: Callable[[], float] = time.monotonic,
        shared: SharedTurns | None = None,
    ) -> None:
        self.seconds, self._clock, self._shared = seconds, clock, shared
        self._secret = secrets.token_bytes(32) if shared is None else COMMON_SECRET
        self._empty = hashlib.blake2b(key=self._secret, digest_size=DIGEST_BYTES)
        self._tiers = TiersByDigest(most)
        self._sessions: OrderedDict[bytes, bytes] = OrderedDict()

    def __len__(self) -> int:
        return self._tiers.noted_since(self._clock() - self.seconds)

    @property
    def is_shared(self) -> bool:
        """Whether other processes go on with these conversations."""
        return self._shared is not None

    async def fetch(self, request: InferenceRequest, *, agents: bool = False) -> None:
        """Look up in `shared` what other processes know of the conversation, so that `history` knows it. An id may have
        been continued elsewhere since this process saw it; a digest of messages has the same tiers everywhere.
        `agents`: as for `history`."""
        if self._shared is None:
            return
        own = self._key_of_id(request, agents)
        keys = [] if own is None else [own]
        if agents and (parent := _parent_of(request.client, request.key_id)) is not None:
            keys.append(parent)
        messages = request.generation.messages or []
        answered = _last_answer(messages)
        if answered is not None and not self._recall(key := self._key_of(request, answered)):
            keys.append(key)
        for key in keys:
            noted = await self._shared.get(key)
            if noted.tiers:
                self._tiers.note(self._clock(), key, noted.tiers)
            if noted.session:
                self._keep(key, noted.session)

    def history(self, request: InferenceRequest, *, agents: bool = False) -> History:
        """What is remembered of the conversation that `request` goes on with. `agents`: it is a step of an agent's
        session, whose client may name it."""
        messages = request.generation.messages or []
        return self._history(request, messages, _last_answer(messages), self._key_of_id(request, agents), agents=agents)

    def _history(
        self,
        request: InferenceRequest,
        messages: Sequence[Turn],
        answered: int | None,
        own: bytes | None,
        *,
        agents: bool,
    ) -> History:
        """`history`, where the place of the last answer and the key of its id are known."""
        if answered is None and own is None:
            return _NO_HISTORY
        key, tiers = b"" if own is None else own, () if own is None else self._recall(own)
        if not tiers and answered is not None:
            by_messages = self._key_of(request, answered)
            tiers = self._recall(by_messages)
            key = by_messages if tiers or own is None else key
        read = messages[: answered + 1] if answered is not None else ()
        return History(
            tiers=tiers,
            tokens=sum(len(m.text) for m in read) // FITTED_CHARS_PER_TOKEN
            + sum(m.media_tokens for m in read if m.media)
            + FITTED_TOKENS_PER_MESSAGE * len(read),
            in_tool_loop=_in_tool_loop(messages),
            session=self._session(key) if agents and tiers else None,
            key=key,
        )

    def id_of(self, request: InferenceRequest, history: History) -> bytes:
        """The digest by which a session is known from its first step on: of its client's id, else of its beginning."""
        if history.session is not None:
            return history.session.id
        own = self._key_of_id(request, agents=True)
        return self._key_of(request, len(request.generation.messages or [])) if own is None else own

    def tier_of_parent(self, request: InferenceRequest) -> int | None:
        """The tier of the agent that started the one that asks; None if it is not known."""
        parent = _parent_of(request.client, request.key_id)
        tiers = () if parent is None else self._recall(parent)
        return tiers[-1] if tiers else None

    def remember(
        self,
        request: InferenceRequest,
        tier: int,
        seconds: float | None = None,
        session: Callable[[Session | None], Session] | None = None,
    ) -> None:
        """Note that `tier` answered `request`. `seconds`: for how long conversations are remembered from now on.
        `session`: of a step of an agent's session, what it has become, from what it was."""
        if seconds is not None:
            self.seconds = seconds
        messages = request.generation.messages
        if messages is None:
            return
        agents, now = session is not None, self._clock()
        answered, own = _last_answer(messages), self._key_of_id(request, agents)
        history = self._history(request, messages, answered, own, agents=agents)
        tiers = (*history.tiers, tier)[-TIERS_KEPT:]
        keys = [self._key_of(request, len(messages))]
        if own is not None:
            keys.append(own)
        became = b"" if session is None else encode_session(session(history.session))
        for key in keys:
            self._tiers.note(now, key, tiers)
            if became:
                self._keep(key, became)
            if self._shared is not None:
                self._shared.note(key, Noted(tiers, became), self.seconds)
        if answered is not None:
            # Its place goes to another conversation before that of one that may still be continued.
            self._tiers.age(now - self.seconds + REPEAT_SECONDS, self._key_of(request, answered))

    def note_private(self, request: InferenceRequest) -> None:
        """Note that a session is private from this request on, under whatever its next request may be recognised by: an
        id, that of the agent that started it, or its messages."""
        keys = self._session_keys(request)
        if (messages := request.generation.messages) is not None:
            keys.append(self._key_of(request, len(messages)))
        now = self._clock()
        for key in map(_private_key, keys):
            self._tiers.note(now, key, _PRIVATE)
            if self._shared is not None:
                self._shared.note(key, Noted(_PRIVATE), self.seconds)

    async def note_check(self, digest: bytes, check: Exit) -> None:
        """Note how the caller's own check of a session's last answer ended. `digest`: of its client's id; a session
        that only its messages name is not found by it, and nothing is noted."""
        if self._shared is not None and (noted := await self._shared.get(digest)).session:
            self._keep(digest, noted.session)
        session, tiers = self._session(digest), self._recall(digest)
        if session is None or not tiers:
            return
        became = encode_session(msgspec.structs.replace(session, check=check))
        self._keep(digest, became)
        if self._shared is not None:
            self._shared.note(digest, Noted(tiers, became), self.seconds)

    async def is_private(self, request: InferenceRequest) -> bool:
        """Whether the request goes on with a session that `note_private` was called for, here or in another process."""
        keys = self._session_keys(request)
        if (answered := _last_answer(request.generation.messages or [])) is not None:
            keys.append(self._key_of(request, answered))
        noted = [_private_key(key) for key in keys]
        if any(self._recall(key) for key in noted):
            return True
        return self._shared is not None and any([(await self._shared.get(key)).tiers for key in noted])

    def _session_keys(self, request: InferenceRequest) -> list[bytes]:
        own, parent = self._key_of_id(request, agents=True), _parent_of(request.client, request.key_id)
        return [key for key in (own, parent) if key is not None]

    def _session(self, key: bytes) -> Session | None:
        kept = self._sessions.get(key)
        return None if kept is None else decode_session(kept)

    def _keep(self, key: bytes, session: bytes) -> None:
        self._sessions[key] = session
        self._sessions.move_to_end(key)
        if len(self._sessions) > MOST_SESSIONS:
            self._sessions.popitem(last=False)

    def _recall(self, key: bytes) -> tuple[int, ...]:
        return self._tiers.since(self._clock() - self.seconds, key)

    def _key_of_id(self, request: InferenceRequest, agents: bool) -> bytes | None:
        """The key of the caller's own id of the conversation, or of its client's id of the agent's session."""
        if agents and request.client is not None:
            own = session_digest(request.client, request.key_id)
            if own is not None:
                return own
        if request.options.conversation is None:
            return None
        return self._digest_of(request, b"id", request.options.conversation.encode()).digest()

    def _key_of(self, request: InferenceRequest, count: int) -> bytes:
        """The key of its first `count` messages. Kept, since megabytes take milliseconds."""
        read, messages = request.generation.prompts_read, request.generation.messages or []
        digests: MessageDigests | None = read.get(self._secret)
        if digests is None or digests.messages is not messages:
            digests = read[self._secret] = MessageDigests(messages, self._digest_of(request, b"messages"))
        return digests.of_first(count)

    def _digest_of(self, request: InferenceRequest, kind: bytes, *more: bytes) -> "hashlib.blake2b":
        digest = self._empty.copy()
        digest.update(framed([kind, (request.key_id or "").encode(), *more]))
        return digest


class MessageDigests:
    """Digests of the beginnings of `messages`, which are read once for all of them. `empty`: of no message."""

    def __init__(self, messages: Sequence[Turn], empty: "hashlib.blake2b") -> None:
        self.messages, self._empty = messages, empty
        self._taken, self._digest = 0, empty.copy()
        self._known: dict[int, bytes] = {}

    def of_first(self, count: int) -> bytes:
        """The digest of the first `count` messages."""
        if (digest := self._known.get(count)) is not None:
            return digest
        if count < self._taken:
            self._taken, self._digest = 0, self._empty.copy()
        # At once: while a long text is read, other threads run.
        self._digest.update(framed(chain.from_iterable(map(digested, self.messages[self._taken : count]))))
        self._taken = count
        digest = self._known[count] = self._digest.digest()
        return digest


class TiersByDigest:
    """At most `most` digests with the tiers noted for them, in 32 bytes each; the memory is reserved once.

    A cache of sets: a digest's first bytes choose up to 64 slots, and among those the longest unnoted makes room. So
    up to 64 digests the oldest goes first; of more, some go before their turn and some after it, but none that fewer
    than a quarter of `most` came after (the chance is below 1e-15). Digests must be evenly spread, as a keyed hash's.
    """

    def __init__(self, most: int) -> None:
        self._ways = min(most, _WAYS)
        self._sets = most // self._ways
        slots = self._sets * self._ways
        # Pages of a map are not in memory before they are used.
        self._digests = mmap.mmap(-1, slots * DIGEST_BYTES)
        # No numpy array: among other work, its `argmin` of so few numbers took several times as long as `min` does.
        self._noted = array("d", [-math.inf]) * slots
        # A slot's tiers from the oldest on, then zeros: tiers count from 1.
        self._tiers = mmap.mmap(-1, slots * TIERS_KEPT)

    def noted_since(self, moment: float) -> int:
        """How many digests were noted at `moment` or later."""
        return int(np.count_nonzero(np.frombuffer(self._noted) >= moment))

    def since(self, moment: float, digest: bytes) -> tuple[int, ...]:
        """The tiers of `digest`, oldest first; none if it was last noted before `moment` or had to make room."""
        slot = self._slot_of(digest)
        if slot is None or self._noted[slot] < moment:
            return ()
        return tuple(self._tiers[slot * TIERS_KEPT : (slot + 1) * TIERS_KEPT].rstrip(b"\0"))

    def note(self, now: float, digest: bytes, tiers: tuple[int, ...]) -> None:
        """Keep the last `TIERS_KEPT` of `tiers` for `digest`, in place of what was there."""
        slot = self._slot_of(digest)
        if slot is None:
            slot = self._room_for(digest)
            self._digests[slot * DIGEST_BYTES : (slot + 1) * DIGEST_BYTES] = digest
        self._noted[slot] = now
        kept = bytes(tiers[-TIERS_KEPT:])
        self._tiers[slot * TIERS_KEPT : (slot + 1) * TIERS_KEPT] = kept.ljust(TIERS_KEPT, b"\0")

    def age(self, moment: float, digest: bytes) -> None:
        """Treat `digest`, if it is there, as noted at `moment` if that is earlier."""
        slot = self._slot_of(digest)
        if slot is not None:
            self._noted[slot] = min(self._noted[slot], moment)

    def _first_of(self, digest: bytes) -> int:
        return int.from_bytes(digest[:8], "little") % self._sets * self._ways

    def _slot_of(self, digest: bytes) -> int | None:
        # Two digests' neighbouring halves look like a third as seldom as two digests are equal: it is not looked for.
        first = self._first_of(digest)
        at = self._digests.find(digest, first * DIGEST_BYTES, (first + self._ways) * DIGEST_BYTES)
        return None if at < 0 else at // DIGEST_BYTES

    def _room_for(self, digest: bytes) -> int:
        """The slot for a new digest: one of its set that was never noted, else the longest unnoted."""
        noted, first = self._noted, self._first_of(digest)
        end = first + self._ways
        try:
            return noted.index(-math.inf, first, end)
        except ValueError:
            return noted.index(min(noted[first:end]), first, end)


def _private_key(key: bytes) -> bytes:
    """Under which a session is noted as private: another digest than that of its tiers, as evenly spread."""
    return hashlib.blake2b(key, digest_size=DIGEST_BYTES, person=b"aio-private-v1").digest()


def _parent_of(turn: ClientTurn | None, key_id: str | None) -> bytes | None:
    """The digest of the session of the agent that started the one of `turn`; None for a main agent. An agent without
    a named parent was started by its session's main one."""
    if turn is None or turn.session is None or (turn.agent is None and turn.parent is None):
        return None
    if turn.agent is None:
        started = msgspec.structs.replace(turn, session=turn.parent, parent=None)
    else:
        by = None if turn.parent == turn.session else turn.parent
        started = msgspec.structs.replace(turn, agent=by, parent=None)
    return session_digest(started, key_id)


def _last_answer(messages: Sequence[Turn]) -> int | None:
    for index in range(len(messages) - 1, -1, -1):
        if messages[index].role == "assistant":
            return index
    return None


def _in_tool_loop(messages: Sequence[Turn]) -> bool:
    """Whether the newest turn brings results of tools, perhaps followed by a client's instructions and reminders."""
    for message in reversed(messages):
        if message.role == "tool":
            return True
        said = message.text.strip() if message.role == "user" else ""
        of_client = said.startswith(CLIENTS_OPENINGS) and not message.media and not users_text(said)
        if message.role != "system" and not of_client:
            return False
    return False


def digested(message: Turn) -> tuple[bytes, ...]:
    """Return what makes a message unlike others: its role, its text, and what is attached to it."""
    parts = message.role.encode(), message.recorded_content().encode(errors="replace")
    return (*parts, message.attachments.encode()) if message.media else parts


def circumstances(history: History, catalog: Catalog, prompt_tokens: int) -> dict[str, Any]:
    """The fields of `PolicyInputs` that say what a conversation's history means for its next turn; {} without any.

    `prompt_tokens`: of the whole request. A tier that has read the beginning pays its price of cached tokens for it; a
    tier that would read it for the first time may pay its price of cache writes.
    """
    if not history.tiers or history.tiers[-1] > len(catalog.tiers):
        return {}
    previous = catalog.tier(history.tiers[-1])
    read = min(history.tokens, prompt_tokens)
    reuse = [
        reuse_usd(spec, read) if _share_a_cache(spec, previous) else -reread_usd(spec, read) for spec in catalog.tiers
    ]
    return {"previous_tier": previous.number, "reuse_usd": reuse, "in_tool_loop": history.in_tool_loop}


def _share_a_cache(tier: TierSpec, other: TierSpec) -> bool:
    """A model of ours caches prefixes for all of its tiers; of other servers we only know that each has its own."""
    return tier.number == other.number or (tier.model is not None and tier.model == other.model)
