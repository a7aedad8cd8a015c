"""Sessions: a random token in a cookie, its hash in the database, and a short-lived copy in memory."""

import hashlib
import hmac
import secrets
from collections import OrderedDict

import msgspec
from sqlalchemy import delete, insert, select
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncEngine

from gateway.base.inference_request import Caller
from gateway.base.stores.database import DatabaseTime
from gateway.tenancy.keys.directory import Directory, KeysUnavailableError, UnknownKeyError
from gateway.tenancy.users.users import SCOPES_OF
from migrations.tables.tenancy import dashboard_sessions, dashboard_users

COOKIE = "aio_session"
CSRF_FIELD, CSRF_HEADER = "csrf_token", "x-csrf-token"
SESSION_SECONDS = 12 * 3600.0
RECHECK_SECONDS = 2.0
"""How long a session is trusted without asking the database; one ended elsewhere ends here after that."""
_MOST_KNOWN = 4096


class SessionsUnavailableError(Exception):
    """The database is down, and this process has not seen the session before."""


class Holder(msgspec.Struct, frozen=True, kw_only=True):
    """Who signed in: a user, or the holder of the key `key_id`, whose SHA-256 is `key_digest`."""

    user_name: str | None = None
    key_id: str | None = None
    key_digest: bytes = b""


class _Known(msgspec.Struct):
    """A session's row: who signed in, and with a key the proof of it."""

    user_name: str | None
    key_id: str | None
    key_proof: str | None
    role: str | None
    expires_at: float
    looked_at: float


class Sessions:
    """Sessions end by expiry, or with their user or key. While the database is down, those known here continue."""

    def __init__(self, engine: AsyncEngine, directory: Directory, clock: DatabaseTime) -> None:
        self._engine, self._directory, self._clock = engine, directory, clock
        self._known: OrderedDict[str, _Known] = OrderedDict()

    async def begin(self, holder: Holder) -> str:
        """Start a session and return the token for the cookie. Deletes expired sessions.

        While the database is down only this process knows it, and for a user `SessionsUnavailableError` is raised.
        """
        token, now = new_token(), self._clock.now()
        proof = None if holder.key_id is None else _proof_of(token, holder.key_digest)
        whose = {"user_name": holder.user_name, "key_id": holder.key_id, "key_proof": proof}
        row = {"session_id": _id_of(token), "created_at": now, "expires_at": now + SESSION_SECONDS}
        try:
            async with self._engine.begin() as connection:
                await connection.execute(delete(dashboard_sessions).where(dashboard_sessions.c.expires_at < now))
                await connection.execute(insert(dashboard_sessions).values(**row, **whose))
        except (SQLAlchemyError, OSError) as error:
            if holder.user_name is not None:
                raise SessionsUnavailableError from error
            session = _Known(**whose, role=None, expires_at=now + SESSION_SECONDS, looked_at=now)
            self._keep(_id_of(token), session)
        return token

    async def end(self, token: str) -> None:
        """Sign out. Raises the database's errors; this process forgets the session in any case."""
        self._known.pop(_id_of(token), None)
        async with self._engine.begin() as connection:
            await connection.execute(delete(dashboard_sessions).where(dashboard_sessions.c.session_id == _id_of(token)))

    async def caller(self, token: str) -> Caller | None:
        """Return who is signed in with this token; None without a valid session. Raises `SessionsUnavailableError`."""
        session_id, now = _id_of(token), self._clock.now()
        session = self._known.get(session_id)
        if session is None or now - session.looked_at >= RECHECK_SECONDS:
            session = await self._look(session_id, session, now)
        if session is None or session.expires_at <= now:
            self._known.pop(session_id, None)
            return None
        return self._caller_of(session, token)

    async def _look(self, session_id: str, session: _Known | None, now: float) -> _Known | None:
        users = dashboard_users
        query = (
            select(dashboard_sessions, users.c.role)
            .outerjoin(users, users.c.name == dashboard_sessions.c.user_name)
            .where(dashboard_sessions.c.session_id == session_id)
        )
        try:
            async with self._engine.connect() as connection:
                row = (await connection.execute(query)).mappings().first()
        except (SQLAlchemyError, OSError) as error:
            if session is None:
                raise SessionsUnavailableError from error
            return session
        if row is None:
            return None
        renewed = _Known(row["user_name"], row["key_id"], row["key_proof"], row["role"], row["expires_at"], now)
        self._keep(session_id, renewed)
        return renewed

    def _keep(self, session_id: str, session: _Known) -> None:
        self._known[session_id] = session
        self._known.move_to_end(session_id)
        while len(self._known) > _MOST_KNOWN:
            self._known.popitem(last=False)

    def _caller_of(self, session: _Known, token: str) -> Caller | None:
        if session.user_name is not None:
            scopes = SCOPES_OF.get(session.role or "")
            name = session.user_name
            return None if scopes is None else Caller(key_id=f"user:{name}", name=name, scopes=scopes)
        proof = (session.key_proof or "").encode()
        try:
            return self._directory.admin_named(
                session.key_id or "", lambda digest: hmac.compare_digest(_proof_of(token, digest).encode(), proof)
            )
        except (UnknownKeyError, KeysUnavailableError):
            return None


def new_token() -> str:
    """Return 256 random bits."""
    return secrets.token_urlsafe(32)


def csrf_of(token: str) -> str:
    """Return the CSRF token for the cookie `token`, which other sites can neither read nor guess; empty without one."""
    return "" if not token else hmac.new(token.encode(), b"csrf", hashlib.sha256).hexdigest()


def csrf_is_right(token: str, sent: str | None) -> bool:
    """Return whether `sent` is the CSRF token of this cookie; without a cookie nothing is."""
    return bool(token) and hmac.compare_digest(csrf_of(token).encode(), (sent or "").encode())


def _proof_of(token: str, digest: bytes) -> str:
    """Return what a session keeps of a key. It is keyed by the cookie's 256 random bits, which are stored nowhere, so
    that no guess of the key can be checked against it."""
    return hmac.new(token.encode(), b"key:" + digest, hashlib.sha256).hexdigest()


def _id_of(token: str) -> str:
    return hashlib.sha256(token.encode()).hexdigest()
