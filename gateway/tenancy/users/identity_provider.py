"""Users of an OpenID provider: authorization code flow with PKCE (OpenID Connect Core 1.0, RFC 7636)."""

import asyncio
import base64
import hashlib
import importlib
import secrets
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any, TypeVar, cast
from urllib.parse import urlencode

import httpx
import msgspec

from gateway.base.settings import Settings, SettingsError
from gateway.tenancy.users.users import ROLES, ProviderUser, Role, UserName
from tiers.remote.http_exchange import bounded_answer

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


class Attempt(msgspec.Struct, frozen=True, kw_only=True):
    """What a browser keeps between leaving for the provider and coming back: random values, and the wanted page."""

    state: str
    nonce: str
    verifier: str
    page: str


class _Metadata(msgspec.Struct, frozen=True, kw_only=True):
    """The part of the discovery document that is used (OpenID Connect Discovery 1.0)."""

    issuer: str
    authorization_endpoint: str
    token_endpoint: str
    jwks_uri: str
    userinfo_endpoint: str | None = None
    token_endpoint_auth_methods_supported: tuple[str, ...] = ("client_secret_basic",)


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
        async with _step(self._issuer), _client() as client:
            metadata = await self._metadata(client)
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
        joint = "&" if "?" in metadata.authorization_endpoint else "?"
        return f"{metadata.authorization_endpoint}{joint}{urlencode(query)}"

    async def user(self, code: str, attempt: Attempt, redirect_url: str) -> ProviderUser:
        """Return the user that the provider gave `code` for. Raises `SignInError`, also for a user without a role."""
        async with _step(self._issuer), _client() as client:
            metadata = await self._metadata(client)
            tokens = await self._tokens(client, metadata, code, attempt, redirect_url)
            claims = await self._claims(client, metadata, tokens.id_token, attempt.nonce)
            if self._settings.oidc_groups_claim not in claims and metadata.userinfo_endpoint and tokens.access_token:
                claims = await self._with_userinfo(client, metadata.userinfo_endpoint, tokens.access_token, claims)
        name, role = _name_of(claims), self._role_of(claims)
        if role is None:
            raise SignInError(f"{name} has no role here: none of the account's groups is in AIO_OIDC_ROLES.")
        identity = hashlib.sha256(f"{metadata.issuer}\0{claims['sub']}".encode()).hexdigest()
        return ProviderUser(name=name, identity=identity, role=role)

    async def _metadata(self, client: httpx.AsyncClient) -> _Metadata:
        if self._known is not None and time.monotonic() < self._known[0] + METADATA_SECONDS:
            return self._known[1]
        found = await _json(client.build_request("GET", self._issuer + DISCOVERY), client, _Metadata)
        if found.issuer.rstrip("/") != self._issuer:
            raise SignInError(f"The provider calls itself {found.issuer!r:.200}, and AIO_OIDC_ISSUER another name.")
        self._known = (time.monotonic(), found)
        return found

    async def _tokens(
        self, client: httpx.AsyncClient, metadata: _Metadata, code: str, attempt: Attempt, redirect_url: str
    ) -> _Tokens:
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
        request = client.build_request("POST", metadata.token_endpoint, data=form)
        if basic:
            # RFC 6749, 2.3.1: both are form-encoded first.
            pair = ":".join(urlencode({"": part})[1:] for part in (name, secret))
            request.headers["authorization"] = f"Basic {base64.b64encode(pair.encode()).decode()}"
        return await _json(request, client, _Tokens)

    async def _claims(self, client: httpx.AsyncClient, metadata: _Metadata, token: str, nonce: str) -> dict[str, Any]:
        """Return the claims of an ID token that this provider signed for us, now, for this attempt."""
        keys = await _json(client.build_request("GET", metadata.jwks_uri), client, dict[str, Any])
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
        except (self._refusal, ValueError, KeyError, TypeError) as error:
            raise SignInError(f"The provider's ID token is not valid: {error}") from None
        return claims

    async def _with_userinfo(
        self, client: httpx.AsyncClient, url: str, access_token: str, claims: dict[str, Any]
    ) -> dict[str, Any]:
        request = client.build_request("GET", url, headers={"authorization": f"Bearer {access_token}"})
        found = await _json(request, client, dict[str, Any])
        if found.get("sub") != claims["sub"]:
            raise SignInError("The provider's user information is that of another account.")
        return found | claims

    def _role_of(self, claims: Mapping[str, Any]) -> Role | None:
        """Return the highest role of the account's groups."""
        given = claims.get(self._settings.oidc_groups_claim, [])
        groups = {given} if isinstance(given, str) else {group for group in given if isinstance(group, str)}
        held = {role for group, role in self._roles.items() if group == "*" or group in groups}
        return next((role for role in reversed(ROLES) if role in held), None)


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


def _client() -> httpx.AsyncClient:
    return httpx.AsyncClient(timeout=_TIMEOUT_SECONDS, headers={"accept": "application/json"})


async def _json(request: httpx.Request, client: httpx.AsyncClient, kind: type[T]) -> T:
    """Send a request and decode its answer. Raises `SignInError`."""
    where = f"The provider's {request.url.host}{request.url.path}"
    _demand_https("the provider's address", str(request.url))
    try:
        response, body = await bounded_answer(client, request, _MOST_BYTES, _TIMEOUT_SECONDS)
        if response.status_code != 200:
            raise SignInError(f"{where} answered {response.status_code}: {body[:200].decode(errors='replace')}")
        return msgspec.json.decode(body, type=kind)
    except httpx.HTTPError as error:
        raise ProviderUnavailableError(f"{where} cannot be reached: {type(error).__name__}.") from None
    except msgspec.MsgspecError:
        raise SignInError(f"{where} answered something that is not understood.") from None


def _demand_https(what: str, address: str) -> None:
    url = httpx.URL(address)
    if url.scheme != "https" and not (url.scheme == "http" and url.host in _LOCAL):
        raise SettingsError(f"{what} must begin with https://")
