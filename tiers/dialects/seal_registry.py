"""Which model sealed the reasoning of an earlier turn: it gets the reasoning back, and no other model does. A digest of
each seal tells the server and model."""

import hashlib
import time
from collections.abc import Callable, Iterable, Sequence
from urllib.parse import urlsplit

import msgspec

from tiers.catalog.tier_spec import ProviderName, RemoteSpec
from tiers.conversation import Dialect, Opaque, Thought, Turn
from tiers.dialects.chat_opaque import opaque_names, opaque_of, with_recalled, without_opaque
from tiers.dialects.dialect import ServerDialect
from tiers.dialects.rules import THOUGHTS
from tiers.tier import Delta, GenerationRequest

MOST = 100_000
"""Seals that are known at a time; about 20 MB."""
SECONDS = 7 * 86_400.0
"""For how long a seal is known."""
_DIGEST_BYTES = 16


class SealRegistry:
    """The server and model of at most `most` seals, each for `seconds` since it was made; no text is stored.

    A process knows what it has passed on itself. Of others, and after a restart, it knows nothing: then only a model
    that is the catalogue's only one with that API may have sealed it.
    """

    def __init__(self, most: int = MOST, seconds: float = SECONDS, clock: Callable[[], float] = time.monotonic) -> None:
        self._most, self._seconds, self._clock = most, seconds, clock
        self._servers: dict[bytes, tuple[str, float]] = {}  # oldest first

    def __len__(self) -> int:
        return len(self._servers)

    def note(self, seal: str, server_model: str) -> None:
        """Note that `server_model` sealed reasoning with `seal` now; a seal that is another's stays so."""
        digest = _digest(seal)
        record = self._servers.pop(digest, None)
        self._servers[digest] = server_model if record is None else record[0], self._clock()
        if len(self._servers) > self._most:
            del self._servers[next(iter(self._servers))]

    def may_read(self, seal: str, server_model: str, *, is_only: bool) -> bool:
        """Whether `server_model` gets the reasoning of this `seal`. `is_only`: no other tier could have made it, or
        its turn is known as the model's."""
        record = self._servers.get(_digest(seal))
        if record is None or record[1] < self._clock() - self._seconds:
            return is_only
        return record[0] == server_model

    def _readable(self, message: Turn, dialect: Dialect | None, server_model: str, *, is_only: bool) -> Turn:
        """Return a turn as `server_model` gets it: in `dialect` at most, without reasoning that another model made."""
        if not (message.opaque or message.recalled):
            return message
        said = message.written(dialect)
        is_own = message.answered_by == server_model if message.answered_by else is_only
        own = [block for block in said if not block.seal or self.may_read(block.seal, server_model, is_only=is_own)]
        if len(own) < len(said) and dialect == "gemini":
            # Gemini's seals are on the calls themselves, so the turn is said again without them.
            own = []
        elif said and dialect is not None:
            own = own or [Opaque(dialect, b"")]
        return msgspec.structs.replace(message.with_opaque([*opaque_of(message), *own]), recalled=())

    def readable_request(
        self,
        request: GenerationRequest,
        dialect: ServerDialect,
        server_model: str,
        *,
        is_only_server: bool,
        is_only_of_api: bool,
        is_own: bool,
    ) -> tuple[GenerationRequest, tuple[str, ...]]:
        """Return the request without what is in the form of another API than `dialect`, or is reasoning of another
        model than `server_model`; and the names of what a chat's caller gave of the latter. `is_only_of_api`: no other
        tier has the API. `is_only_server`, `is_own`: as `is_only` and `is_own` of `_owned`."""
        messages = request.messages
        lost: tuple[str, ...] = ()
        if messages is not None:
            own, left = _owned(messages, server_model, is_only=is_only_server, is_own=is_own)
            read = (self._readable(message, dialect.form, server_model, is_only=is_only_of_api) for message in own)
            original, messages = messages, dialect.own_turns(list(read))
            lost = tuple(dict.fromkeys(
                name for index, names in left.items() for name in names
                if name != THOUGHTS or not _is_as_written(original[index], messages[index], dialect.form)
            ))  # fmt: skip
        opaque = request.opaque if request.is_in(dialect.form) else None
        return msgspec.structs.replace(request, messages=messages, opaque=opaque), lost

    def note_all(self, deltas: Iterable[Delta], server_model: str) -> None:
        """Note that `server_model` sealed the reasoning in `deltas` now."""
        for delta in deltas:
            if delta.opaque is not None and delta.opaque.block is not None and delta.opaque.block.seal:
                self.note(delta.opaque.block.seal, server_model)


def server_model_of(remote: RemoteSpec, provider: ProviderName | None) -> str:
    """Return the name of a server and its model: of all servers of a provider, or of one address."""
    address = urlsplit(remote.base_url)
    server = provider or f"{address.netloc.rpartition('@')[2]}{address.path.rstrip('/')}"
    return f"{remote.kind}/{server}/{remote.model}"


def _owned(
    messages: Sequence[Turn], server_model: str, *, is_only: bool, is_own: bool = False
) -> tuple[list[Turn], dict[int, list[str]]]:
    """Return the turns as `server_model` gets them: thoughts and opaque fields of the chat API that are another one's
    are left out, its own that are recalled are there. `is_only`: what is of an unknown model can only be this one's.
    `is_own`: the model is on a server of one's own, no provider's, which may read thoughts of an unknown model. Then
    the names of what the caller gave and is left out, by the place of the turn."""
    read: list[Turn] = []
    left: dict[int, list[str]] = {}
    for index, message in enumerate(messages):
        if message.is_plain:
            read.append(message)
        elif (message.answered_by == server_model) if message.answered_by else is_only:
            read.append(with_recalled(message))
        else:
            may_read = is_own and not message.answered_by
            left[index] = [name for name in opaque_names(message) if not (may_read and name == THOUGHTS)]
            thoughts = [block for block in message.blocks if isinstance(block, Thought) and may_read]
            bare = without_opaque(message)
            read.append(bare.with_blocks([*thoughts, *bare.blocks]) if thoughts else bare)
    return read, left


def _is_as_written(original: Turn, read: Turn, dialect: Dialect | None) -> bool:
    """Whether a server of this dialect gets a turn as its caller wrote it there, with its thoughts."""
    said = original.written(dialect)
    return read.written(dialect) == said and any(block.json for block in said)


def _digest(seal: str) -> bytes:
    return hashlib.blake2b(seal.encode(errors="replace"), digest_size=_DIGEST_BYTES).digest()


SEALS = SealRegistry()
"""Those that this process knows: all tiers share them, and a reload of the catalogue changes nothing about them."""
