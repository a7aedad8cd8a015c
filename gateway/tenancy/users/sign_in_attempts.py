"""Attempts to sign in at an OpenID provider, as browsers keep them in a cookie: signed, so that none is made up."""

import base64
import hashlib
import hmac
import os
import secrets
import tempfile
from binascii import Error as Base64Error
from contextlib import suppress
from functools import cached_property
from pathlib import Path

import msgspec

from gateway.base.settings import Settings
from inference_core.io.json_errors import JSON_ERRORS

ATTEMPT_SECONDS = 600
KEY_FILE = "oidc-attempts.key"
_SECRET_BYTES = 32
# Longer cookies are none of ours.
_MOST_CHARACTERS = 4096


class Attempt(msgspec.Struct, frozen=True, kw_only=True):
    """What a browser keeps between leaving for the provider and coming back: random values, and the wanted page."""

    state: str
    nonce: str
    verifier: str
    page: str


class _Kept(msgspec.Struct, frozen=True, kw_only=True):
    expires: int
    attempt: Attempt


class AttemptSeal:
    """Signs attempts. All processes of a deployment have the same secret: one made of the client's secret at the
    provider, or of a file in the data folder where the client is public."""

    def __init__(self, settings: Settings) -> None:
        self._client_secret, self._folder = settings.oidc_client_secret, settings.data_path

    def sealed(self, attempt: Attempt, now: float) -> str:
        """Return the cookie's value, right for `ATTEMPT_SECONDS`. `now`: epoch seconds."""
        kept = msgspec.json.encode(_Kept(expires=int(now) + ATTEMPT_SECONDS, attempt=attempt))
        payload = base64.urlsafe_b64encode(kept).decode().rstrip("=")
        return f"{payload}.{self._signature(payload)}"

    def opened(self, value: str, now: float) -> Attempt | None:
        """Return the attempt of a cookie that was signed here and has not expired."""
        payload, _, signature = value[:_MOST_CHARACTERS].partition(".")
        if not hmac.compare_digest(self._signature(payload).encode(), signature.encode(errors="replace")):
            return None
        with suppress(ValueError, Base64Error, *JSON_ERRORS):
            kept = msgspec.json.decode(base64.urlsafe_b64decode(payload + "=" * (-len(payload) % 4)), type=_Kept)
            return kept.attempt if now < kept.expires else None
        return None

    def _signature(self, payload: str) -> str:
        message = payload.encode(errors="replace")
        return hmac.new(self._key, b"aio sign-in attempt\0" + message, hashlib.sha256).hexdigest()

    @cached_property
    def _key(self) -> bytes:
        secret = self._client_secret.encode() or _file_secret(self._folder / KEY_FILE)
        return hmac.new(secret, b"aio sign-in attempts", hashlib.sha256).digest()


def _file_secret(path: Path) -> bytes:
    """Return the secret in a file, made once for all processes; one of this process where the folder takes none."""
    fresh = secrets.token_bytes(_SECRET_BYTES)
    try:
        descriptor, temporary = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(fresh)
            # Fails if another process was first, whose secret then holds.
            with suppress(FileExistsError):
                os.link(temporary, path)
        finally:
            os.unlink(temporary)
        found = path.read_bytes()
    except OSError:
        return fresh
    return found if len(found) == _SECRET_BYTES else fresh
