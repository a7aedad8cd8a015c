"""Ids of calls as Anthropic's clients expect them: in its characters, and never twice in a conversation. A server's own
id that is neither is carried inside, so that the server gets it back."""

import base64
import binascii
import hashlib
import re

_FITS = re.compile(r"[a-zA-Z0-9_-]{16,64}")
_OWN = re.compile(r"toolu_aio[0-9a-f]{10}_(?P<given>[a-zA-Z0-9_-]+)")
_MOST_BYTES = 64


def shown_call_id(call_id: str, request_id: str, place: int) -> str:
    """Return the id of the call number `place` of an answer for a client. Servers may repeat short ids in each
    answer, so only long ones go on as they are."""
    if _FITS.fullmatch(call_id) and not _OWN.fullmatch(call_id):
        return call_id
    told = call_id.encode(errors="replace")
    unique = hashlib.blake2b(f"{request_id}\0{place}\0".encode() + told, digest_size=5).hexdigest()
    if len(told) > _MOST_BYTES:
        return f"toolu_aio{unique}"
    return f"toolu_aio{unique}_{base64.urlsafe_b64encode(told).decode().rstrip('=')}"


def given_call_id(shown: str) -> str:
    """Return the server's own id in one that `shown_call_id` made; any other id as it is."""
    if (found := _OWN.fullmatch(shown)) is None:
        return shown
    text = found["given"]
    try:
        return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)).decode()
    except (binascii.Error, ValueError):
        return shown
