"""Users of an OpenID provider: authorization code flow with PKCE (OpenID Connect Core 1.0, RFC 7636).

Browsers keep their attempts to sign in in a cookie: signed, so that none is made up.
"""

import asyncio
import base64
import hashlib
import hmac
import importlib
import os
import secrets
import tempfile
import time
from binascii import Error as Base64Error
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from functools import cached_property
from http.cookiejar import CookieJar, DefaultCookiePolicy
from pathlib import Path
from typing import Any, TypeVar, cast
from urllib.parse import urlencode

import httpx
import msgspec

from gateway.base.settings import Settings, SettingsError
from gateway.tenancy.users.users import ROLES, ProviderUser, Role, UserName
from inference_core.io.files import JSON_ERRORS
from tiers.remote.http_exchange import bounded_answer
from tiers.remote.http_transport import ProxyingTransport
from tiers.server_words import one_line

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
        secret = path.read_bytes()
    except OSError:
        return fresh
    return secret if len(secret) == _SECRET_BYTES else fresh


T = TypeVar("T")
DISCOVERY = "/.well-known/openid-configuration"
# Signatures of key pairs only: with a shared secret, everybody who knows it could sign in as anyone.
ALGORITHMS = ["RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA"]
METADATA_SECONDS = 3600.0
_LEEWAY_SECONDS = 60
# Of one request to the provider, and of all those of a step of the sign-in.
_TIMEOUT_SECONDS, _STEP_SECONDS = 5.0, 8.0
# Of one of its answers; some have hundreds of keys.
_MOST_BYTES = 2**20
_LOCAL = ("127.0.0.1", "localhost", "::1")


class SignInError(Exception):
    """A sign-in at the provider failed; the message may be shown to the user."""


class ProviderUnavailableError(SignInError):
    """The provider cannot be reached, or does not answer in time."""


class ProviderAnswerError(SignInError):
    """The provider's answer cannot be read: the provider or its settings are at fault, not the user."""


class _Metadata(msgspec.Struct, frozen=True, kw_only=True):
    """The part of the discovery document that is used (OpenID Connect Discovery 1.0)."""

    issuer: str
    authorization_endpoint: str
    token_endpoint: str
    jwks_uri: str
    userinfo_endpoint: str | None = None
    token_endpoint_auth_methods_supported: tuple[str, ...] = ("client_secret_basic",)


_ADDRESSES = ("authorization_endpoint", "token_endpoint", "jwks_uri", "userinfo_endpoint")


class _Tokens(msgspec.Struct, frozen=True, kw_only=True):
    id_token: str
    access_token: str = ""


class IdentityProvider:
    """One OpenID provider. Raises `SettingsError` where the settings cannot be right."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._issuer = settings.oidc_issuer.rstrip("/")
        _demand_https("AIO_OIDC_ISSUER", self._issuer)
        if not settings.oidc_client_id:
            raise SettingsError("AIO_OIDC_ISSUER needs AIO_OIDC_CLIENT_ID, the id of AIO at the provider")
        self._roles = roles_of(settings.oidc_roles)
        try:
            self._jose: Any = importlib.import_module("joserfc.jwt")
            self._keys: Any = importlib.import_module("joserfc.jwk").KeySet
            self._refusal: type[Exception] = importlib.import_module("joserfc.errors").JoseError
        except ImportError:
            raise SettingsError("AIO_OIDC_ISSUER needs the library joserfc: pip install 'aio-gateway[oidc]'") from None
        self._known: tuple[float, _Metadata] | None = None
        self.seal = AttemptSeal(settings)

    @cached_property
    def _client(self) -> httpx.AsyncClient:
        """The one client of all sign-ins, made at the first of them; it keeps no cookies, which would be of others."""
        no_cookies = CookieJar(DefaultCookiePolicy(allowed_domains=[]))
        transport, headers = ProxyingTransport(), {"accept": "application/json"}
        return httpx.AsyncClient(transport=transport, timeout=_TIMEOUT_SECONDS, headers=headers, cookies=no_cookies)

    async def close(self) -> None:
        if "_client" in self.__dict__:
            await self._client.aclose()

    def new_attempt(self, page: str) -> Attempt:
        """Return the random values of one sign-in, each of 256 bits."""
        return Attempt(
            state=secrets.token_urlsafe(32),
            nonce=secrets.token_urlsafe(32),
            verifier=secrets.token_urlsafe(32),
            page=page,
        )

    async def address(self, attempt: Attempt, redirect_url: str) -> str:
        """Return the provider's page to which the browser is sent. Raises `SignInError`."""
        async with _step(self._issuer):
            metadata = await self._metadata()
        challenge = base64.urlsafe_b64encode(hashlib.sha256(attempt.verifier.encode()).digest()).rstrip(b"=").decode()
        query = {
            "response_type": "code",
            "client_id": self._settings.oidc_client_id,
            "redirect_uri": redirect_url,
            "scope": self._settings.oidc_scopes,
            "state": attempt.state,
            "nonce": attempt.nonce,
            "code_challenge": challenge,
            "code_challenge_method": "S256",
        }
        page = str(httpx.URL(metadata.authorization_endpoint).copy_with(fragment=None))
        return f"{page}{'&' if '?' in page else '?'}{urlencode(query)}"

    async def user(self, code: str, attempt: Attempt, redirect_url: str) -> ProviderUser:
        """Return the user that the provider gave `code` for. Raises `SignInError`, also for a user without a role."""
        async with _step(self._issuer):
            metadata = await self._metadata()
            tokens = await self._tokens(metadata, code, attempt, redirect_url)
            claims = await self._claims(metadata, tokens.id_token, attempt.nonce)
            if (
                claims.get(self._settings.oidc_groups_claim) is None
                and metadata.userinfo_endpoint
                and tokens.access_token
            ):
                claims = await self._with_userinfo(metadata.userinfo_endpoint, tokens.access_token, claims)
        name, role = _name_of(claims), self._role_of(claims)
        if role is None:
            raise SignInError(f"{name} has no role here: none of the account's groups is in AIO_OIDC_ROLES.")
        identity = hashlib.sha256(f"{metadata.issuer}\0{claims['sub']}".encode()).hexdigest()
        return ProviderUser(name=name, identity=identity, role=role)

    async def _metadata(self) -> _Metadata:
        if self._known is not None and time.monotonic() < self._known[0] + METADATA_SECONDS:
            return self._known[1]
        metadata = await _json(self._client.build_request("GET", self._issuer + DISCOVERY), self._client, _Metadata)
        for name in _ADDRESSES:
            if (address := getattr(metadata, name)) is not None:
                _demand_address(f"The provider's {name}", address)
        if metadata.issuer.rstrip("/") != self._issuer:
            raise SignInError(f"The provider calls itself {metadata.issuer!r:.200}, and AIO_OIDC_ISSUER another name.")
        self._known = (time.monotonic(), metadata)
        return metadata

    async def _tokens(self, metadata: _Metadata, code: str, attempt: Attempt, redirect_url: str) -> _Tokens:
        form = {
            "grant_type": "authorization_code",
            "code": code,
            "redirect_uri": redirect_url,
            "code_verifier": attempt.verifier,
        }
        name, secret = self._settings.oidc_client_id, self._settings.oidc_client_secret
        basic = bool(secret) and "client_secret_basic" in metadata.token_endpoint_auth_methods_supported
        if not basic:
            form |= {"client_id": name} | ({"client_secret": secret} if secret else {})
        request = self._client.build_request("POST", metadata.token_endpoint, data=form)
        if basic:
            # RFC 6749, 2.3.1: both are form-encoded first.
            pair = ":".join(urlencode({"": part})[1:] for part in (name, secret))
            request.headers["authorization"] = f"Basic {base64.b64encode(pair.encode()).decode()}"
        return await _json(request, self._client, _Tokens)

    async def _claims(self, metadata: _Metadata, token: str, nonce: str) -> dict[str, Any]:
        """Return the claims of an ID token that this provider signed for us, now, for this attempt."""
        keys = await _json(self._client.build_request("GET", metadata.jwks_uri), self._client, dict[str, Any])
        rules = self._jose.JWTClaimsRegistry(
            leeway=_LEEWAY_SECONDS,
            iss={"essential": True, "value": metadata.issuer},
            aud={"essential": True, "value": self._settings.oidc_client_id},
            sub={"essential": True},
            exp={"essential": True},
            azp={"value": self._settings.oidc_client_id},
            nonce={"essential": True, "value": nonce},
        )
        try:
            claims: dict[str, Any] = self._jose.decode(token, self._keys.import_key_set(keys), ALGORITHMS).claims
            rules.validate(claims)
            if not isinstance(claims["sub"], str):
                raise TypeError("the claim sub is no text")
            claims["sub"].encode()
        # The library decodes nested and mistyped parts of a token without checks of its own.
        except (
            self._refusal,
            ValueError,
            LookupError,
            TypeError,
            AttributeError,
            RecursionError,
            ArithmeticError,
        ) as error:
            raise SignInError(f"The provider's ID token is not valid: {one_line(str(error))}") from None
        return claims

    async def _with_userinfo(self, url: str, access_token: str, claims: dict[str, Any]) -> dict[str, Any]:
        request = self._client.build_request("GET", url, headers={"authorization": f"Bearer {access_token}"})
        userinfo = await _json(request, self._client, dict[str, Any])
        if userinfo.get("sub") != claims["sub"]:
            raise SignInError("The provider's user information is that of another account.")
        return userinfo | {name: value for name, value in claims.items() if value is not None}

    def _role_of(self, claims: Mapping[str, Any]) -> Role | None:
        """Return the highest role of the account's groups. Raises `SignInError` where they are unknown."""
        claim = self._settings.oidc_groups_claim
        claimed = claims.get(claim)
        if claimed is None and _are_elsewhere(claims, claim):
            raise SignInError(
                f"The account has so many groups that the provider does not send them. Let it send fewer in the claim "
                f"{claim}, such as those assigned to the application, or send roles and name their claim in "
                "AIO_OIDC_GROUPS_CLAIM."
            )
        groups = _groups_of(claim, claimed)
        held = {role for group, role in self._roles.items() if group == "*" or group in groups}
        return next((role for role in reversed(ROLES) if role in held), None)


def _groups_of(claim: str, claimed: Any) -> set[str]:
    """Return the names of a list, of an object of objects (as Zitadel writes roles), or of one text."""
    match claimed:
        case None:
            return set()
        case str():
            return {claimed}
        case list():
            return {group for group in claimed if isinstance(group, str)}
        case dict():
            return {group for group, held in claimed.items() if isinstance(held, dict)}
    raise ProviderAnswerError(f"The provider's answer cannot be read: its claim {claim} is no list of names.")


def _are_elsewhere(claims: Mapping[str, Any], claim: str) -> bool:
    """Return whether the provider left the claim out for its length: as a distributed claim (OpenID Connect Core 1.0,
    section 5.6.2; Microsoft Entra from 200 groups on), or marked by Entra's `hasgroups`."""
    names = claims.get("_claim_names")
    return (isinstance(names, dict) and claim in names) or claims.get("hasgroups") in (True, "true")


def roles_of(setting: str) -> dict[str, Role]:
    """Return the role of each group in `GROUP=ROLE,…`; the group `*` is everyone. Raises `SettingsError`."""
    pairs = [entry.rpartition("=") for entry in setting.split(",") if entry.strip()]
    roles = {group.strip(): role.strip() for group, _, role in pairs}
    if not roles or "" in roles or not set(roles.values()) <= set(ROLES):
        raise SettingsError(
            "AIO_OIDC_ROLES must be GROUP=ROLE, several with commas, each role one of viewer, operator and admin; "
            "*=viewer lets everyone in who can sign in at the provider"
        )
    return cast(dict[str, Role], roles)


def _name_of(claims: Mapping[str, Any]) -> str:
    for claim in ("preferred_username", "email", "sub"):
        try:
            return msgspec.convert(claims.get(claim), UserName)
        except msgspec.ValidationError:
            continue
    raise SignInError("The account has no name that can be used here: preferred_username, email or sub.")


@asynccontextmanager
async def _step(issuer: str) -> AsyncIterator[None]:
    """Raise `SignInError` if what happens in the block takes too long."""
    try:
        async with asyncio.timeout(_STEP_SECONDS):
            yield
    except TimeoutError:
        raise ProviderUnavailableError(f"The provider {issuer} did not answer within {_STEP_SECONDS:g} s.") from None


async def _json(request: httpx.Request, client: httpx.AsyncClient, kind: type[T]) -> T:
    """Send a request and decode its answer. Raises `SignInError`."""
    where = f"The provider's {request.url.host}{request.url.path}"
    try:
        response, body = await bounded_answer(client, request, _MOST_BYTES, _TIMEOUT_SECONDS)
        if response.status_code != 200:
            said = one_line(body[:200].decode(errors="replace"))
            raise SignInError(f"{where} answered {response.status_code}: {said}")
        return msgspec.json.decode(body, type=kind)
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise ProviderUnavailableError(f"{where} cannot be reached: {type(error).__name__}.") from None
    except JSON_ERRORS:
        raise ProviderAnswerError(f"{where}: the provider's answer cannot be read.") from None


def _demand_address(what: str, address: str) -> None:
    """Raise `ProviderAnswerError` unless requests and browsers may be sent to an address of the provider."""
    try:
        _demand_https(what, address)
    except SettingsError as error:
        raise ProviderAnswerError(f"The provider's answer cannot be read: {error}.") from None


def _demand_https(what: str, address: str) -> None:
    try:
        url = httpx.URL(address)
    except (httpx.InvalidURL, ValueError):
        raise SettingsError(f"{what} is not a URL") from None
    if not url.host or (url.port or 1) > 65_535:
        raise SettingsError(f"{what} is not a URL")
    if url.scheme != "https" and not (url.scheme == "http" and url.host in _LOCAL):
        raise SettingsError(f"{what} must begin with https://")
