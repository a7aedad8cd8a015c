"""ID tokens of an OpenID provider: what is accepted, what is refused, and that a code is bound to its browser."""

import base64
import hashlib
import json
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from joserfc import jwt
from joserfc.jwk import KeySet, OctKey, RSAKey

from gateway.base.settings import Settings, SettingsError
from gateway.tenancy.users.identity_provider import IdentityProvider, SignInError, roles_of

BACK = "http://127.0.0.1:8080/admin/oidc/callback"
KEY = RSAKey.generate_key(2048, auto_kid=True)


class Provider:
    """Answers discovery, keys, tokens and user information; a test changes `claims`, `key`, `algorithm` and `info`."""

    def __init__(self) -> None:
        self.key: Any = KEY
        self.algorithm = "RS256"
        self.claims: dict[str, Any] = {}
        self.info: dict[str, Any] = {}
        self.issuer: str | None = None
        self.forms: list[dict[str, list[str]]] = []
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self.reply(outer.answer(self.path))

            def do_POST(self) -> None:
                outer.forms.append(parse_qs(self.rfile.read(int(self.headers["content-length"])).decode()))
                self.reply({"access_token": "a", "token_type": "Bearer", "id_token": outer.token()})

            def reply(self, body: dict[str, Any]) -> None:
                data = json.dumps(body).encode()
                self.send_response(200)
                self.send_header("content-length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, *_: Any) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"

    def answer(self, path: str) -> dict[str, Any]:
        if path.endswith("openid-configuration"):
            ends = ("authorization_endpoint", "token_endpoint", "userinfo_endpoint")
            return {"issuer": self.issuer or self.url, "jwks_uri": f"{self.url}/keys"} | {
                end: f"{self.url}/{end}" for end in ends
            }
        return KeySet([KEY]).as_dict() if path == "/keys" else self.info

    def token(self) -> str:
        if self.algorithm == "none":
            parts = ({"alg": "none"}, self.claims)
            return ".".join(base64.urlsafe_b64encode(json.dumps(p).encode()).rstrip(b"=").decode() for p in parts) + "."
        header = {"alg": self.algorithm, "kid": KEY.kid}
        return jwt.encode(header, self.claims, self.key, algorithms=[self.algorithm])


@pytest.fixture
def provider() -> Iterator[Provider]:
    provider = Provider()
    thread = threading.Thread(target=provider.server.serve_forever)
    thread.start()
    yield provider
    provider.server.shutdown()
    provider.server.server_close()
    thread.join()


def client_of(provider: Provider, **changes: Any) -> IdentityProvider:
    given = {"oidc_issuer": provider.url, "oidc_client_id": "aio", "oidc_roles": "ops=operator"} | changes
    return IdentityProvider(Settings(**given))


def claims_of(provider: Provider, of_attempt: str, **changes: Any) -> dict[str, Any]:
    now = int(time.time())
    usual = {"iss": provider.url, "aud": "aio", "sub": "1", "exp": now + 300, "iat": now, "nonce": of_attempt}
    return usual | {"preferred_username": "ann", "groups": ["ops"]} | changes


async def test_the_code_is_bound_to_the_browser_that_asked(provider: Provider) -> None:
    client = client_of(provider)
    attempt = client.new_attempt("/admin")
    query = parse_qs(urlsplit(await client.address(attempt, BACK)).query)
    provider.claims = claims_of(provider, query["nonce"][0])
    user = await client.user("the-code", attempt, BACK)
    assert (user.name, user.role) == ("ann", "operator")
    [form] = provider.forms
    hashed = hashlib.sha256(form["code_verifier"][0].encode()).digest()
    assert base64.urlsafe_b64encode(hashed).rstrip(b"=").decode() == query["code_challenge"][0]
    assert (query["code_challenge_method"], query["redirect_uri"], form["redirect_uri"]) == (["S256"], [BACK], [BACK])
    assert query["state"] == [attempt.state]


@pytest.mark.parametrize(
    "changes",
    [
        {"aud": "another"},
        {"iss": "https://evil.example"},
        {"exp": 1},
        {"nonce": "of another attempt"},
        {"sub": None},
        {"azp": "another"},
    ],
)
async def test_a_token_for_another_client_time_or_attempt_is_refused(
    provider: Provider, changes: dict[str, Any]
) -> None:
    client = client_of(provider)
    attempt = client.new_attempt("/admin")
    provider.claims = claims_of(provider, attempt.nonce, **changes)
    with pytest.raises(SignInError, match="ID token is not valid"):
        await client.user("code", attempt, BACK)


@pytest.mark.parametrize("forgery", ["another key", "no signature", "the client's secret"])
async def test_a_forged_token_is_refused(provider: Provider, forgery: str) -> None:
    client = client_of(provider, oidc_client_secret="a-secret-that-is-shared-with-the-provider")
    attempt = client.new_attempt("/admin")
    provider.claims = claims_of(provider, attempt.nonce)
    if forgery == "another key":
        provider.key = RSAKey.generate_key(2048)
    elif forgery == "no signature":
        provider.algorithm = "none"
    else:
        provider.algorithm, provider.key = "HS256", OctKey.import_key("a-secret-that-is-shared-with-the-provider")
    with pytest.raises(SignInError, match="ID token is not valid"):
        await client.user("code", attempt, BACK)


async def test_groups_may_come_with_the_user_information_alone(provider: Provider) -> None:
    client = client_of(provider)
    attempt = client.new_attempt("/admin")
    provider.claims = claims_of(provider, attempt.nonce)
    del provider.claims["groups"]
    provider.info = {"sub": "1", "groups": ["ops"]}
    assert (await client.user("code", attempt, BACK)).role == "operator"
    provider.info = {"sub": "2", "groups": ["ops"]}
    with pytest.raises(SignInError, match="another account"):
        await client.user("code", attempt, BACK)


async def test_a_provider_with_another_name_is_refused(provider: Provider) -> None:
    provider.issuer = "https://evil.example"
    client = client_of(provider)
    with pytest.raises(SignInError, match="calls itself"):
        await client.address(client.new_attempt("/admin"), BACK)


async def test_a_provider_that_is_away_is_said() -> None:
    client = IdentityProvider(Settings(oidc_issuer="http://127.0.0.1:9", oidc_client_id="aio", oidc_roles="*=viewer"))
    with pytest.raises(SignInError, match="cannot be reached"):
        await client.address(client.new_attempt("/admin"), BACK)


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"oidc_issuer": "http://login.example.com"}, "AIO_OIDC_ISSUER"),
        ({"oidc_client_id": ""}, "AIO_OIDC_CLIENT_ID"),
        ({"oidc_roles": ""}, "AIO_OIDC_ROLES"),
        ({"oidc_roles": "ops=owner"}, "AIO_OIDC_ROLES"),
    ],
)
def test_settings_that_cannot_be_right_stop_the_start(changes: dict[str, str], named: str) -> None:
    usual = {"oidc_issuer": "https://login.example.com", "oidc_client_id": "aio", "oidc_roles": "ops=operator"}
    with pytest.raises(SettingsError, match=named):
        IdentityProvider(Settings(**(usual | changes)))  # type: ignore[arg-type]


def test_the_group_is_what_stands_before_the_last_equals_sign() -> None:
    assert roles_of("cn=ops=admin, *=viewer") == {"cn=ops": "admin", "*": "viewer"}
