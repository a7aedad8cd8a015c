"""Which model made which sealed reasoning: a digest of each seal, so that its maker gets it back and no other model."""

import hashlib
import time
from collections.abc import Callable, Iterable, Sequence
from urllib.parse import urlsplit

import msgspec

from tiers.catalog.tier_spec import ProviderName, RemoteSpec
from tiers.chat_state import FORM, has_state, state_names, with_kept_state, without_state
from tiers.native_content import Form, NativeContent
from tiers.remote.optional_fields import THOUGHTS
from tiers.tier import ChatMessage, Delta

MOST = 100_000
"""Seals that are known at a time; about 20 MB."""
SECONDS = 7 * 86_400.0
"""For how long a seal is known."""
_DIGEST_BYTES = 16


class ReasoningMakers:
    """The makers of at most `most` seals, each for `seconds` since it was made; no text is kept.

    A process knows what it has passed on itself. Of others, and after a restart, it knows nothing: then only a model
    that is the catalogue's only one with that API may have made it.
    """

    def __init__(self, most: int = MOST, seconds: float = SECONDS, clock: Callable[[], float] = time.monotonic) -> None:
        self._most, self._seconds, self._clock = most, seconds, clock
        self._makers: dict[bytes, tuple[str, float]] = {}  # oldest first

    def __len__(self) -> int:
        return len(self._makers)

    def note(self, seal: str, maker: str) -> None:
        """`maker` has made the reasoning of this `seal` now; a seal that is another's stays so."""
        digest = _digest(seal)
        known = self._makers.pop(digest, None)
        self._makers[digest] = maker if known is None else known[0], self._clock()
        if len(self._makers) > self._most:
            del self._makers[next(iter(self._makers))]

    def may_read(self, seal: str, model: str, *, is_only: bool) -> bool:
        """Whether `model` gets the reasoning of this `seal`. `is_only`: no other tier could have made it, or
        its turn is known as the model's."""
        known = self._makers.get(_digest(seal))
        if known is None or known[1] < self._clock() - self._seconds:
            return is_only
        return known[0] == model

    def readable(self, message: ChatMessage, form: Form | None, model: str, *, is_only: bool) -> ChatMessage:
        """Return a turn as `model` gets it: in `form` at most, and without reasoning that another model made."""
        said = next((one for one in (message.native, message.kept) if one and one.form == form), None)
        if said is not None and said.is_sealed:
            blocks = said.blocks
            is_own = message.maker == model if message.maker else is_only
            own = tuple(one for one in blocks if not one.seal or self.may_read(one.seal, model, is_only=is_own))
            if len(own) < len(blocks):
                # Gemini's seals are on the calls themselves, so the turn is said again without them.
                said = None if said.form == "gemini" else NativeContent(said.form, own)
        if said is message.native and message.kept is None:
            return message
        return msgspec.structs.replace(message, native=said, kept=None)

    def note_all(self, deltas: Iterable[Delta], maker: str) -> None:
        """`maker` has made the reasoning that is sealed in `deltas` now."""
        for delta in deltas:
            if delta.native is not None and delta.native.block is not None and delta.native.block.seal:
                self.note(delta.native.block.seal, maker)


def maker_of(remote: RemoteSpec, provider: ProviderName | None) -> str:
    """Return the name of a server and its model: of all servers of a provider, or of one address."""
    address = urlsplit(remote.base_url)
    server = provider or f"{address.netloc.rpartition('@')[2]}{address.path.rstrip('/')}"
    return f"{remote.kind}/{server}/{remote.model}"


def owned(
    messages: Sequence[ChatMessage], maker: str, *, is_only: bool, is_own: bool = False
) -> tuple[list[ChatMessage], tuple[str, ...]]:
    """Return the turns as the model of `maker` gets them: thoughts and other state of the chat API that are another
    one's are left out, its own that were kept are there. `is_only`: state of an unknown maker can only
    be the model's. `is_own`: the model is on a server of one's own, no provider's, which may read thoughts of an
    unknown maker. Then the names of what the caller gave and is left out."""
    read: list[ChatMessage] = []
    lost: dict[str, None] = {}
    for message in messages:
        if not has_state(message):
            read.append(message)
        elif (message.maker == maker) if message.maker else is_only:
            kept = message.kept
            read.append(message if kept is None or kept.form != FORM else with_kept_state(message, kept))
        else:
            may_read = is_own and not message.maker
            left = [name for name in state_names(message) if not (may_read and name == THOUGHTS)]
            lost |= dict.fromkeys(left)
            bare = without_state(message)
            read.append(msgspec.structs.replace(bare, reasoning=message.reasoning) if may_read else bare)
    return read, tuple(lost)


def _digest(seal: str) -> bytes:
    return hashlib.blake2b(seal.encode(errors="replace"), digest_size=_DIGEST_BYTES).digest()


MAKERS = ReasoningMakers()
"""Those that this process knows: all tiers share them, and a reload of the catalogue changes nothing about them."""
