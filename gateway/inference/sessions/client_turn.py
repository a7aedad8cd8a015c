"""The name of a client's session within its caller's key: ids are hints, and no key reaches another's sessions."""

import hashlib

from gateway.base.requests.client_turn import ClientTurn, TurnKind

__all__ = ["ClientTurn", "TurnKind", "session_digest"]
DIGEST_BYTES = 16


def session_digest(turn: ClientTurn, key_id: str | None) -> bytes | None:
    """Return the digest of the session of `turn`, or of its agent's own where it has one, for this key; None without
    an id. The key's pseudonym is part of it, so that callers never share a session whatever ids they send."""
    if turn.session is None:
        return None
    digest = hashlib.blake2b(digest_size=DIGEST_BYTES, person=b"aio-session-v1")
    for part in (key_id or "", turn.client, turn.session, turn.agent or ""):
        encoded = part.encode(errors="replace")
        # The length goes first, so that no two lists of parts run into the same bytes.
        digest.update(len(encoded).to_bytes(8, "little") + encoded)
    return digest.digest()
