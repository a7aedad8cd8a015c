"""ID tokens of an OpenID provider: what is accepted, what is refused, and that a code is bound to its browser."""

import base64
import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import httpx
import msgspec
import pytest
from joserfc.jwk import OctKey, RSAKey

from gateway.base.settings import Settings, SettingsError
from gateway.tenancy.users.identity_provider import (
    KEY_FILE,
    Attempt,
    AttemptSeal,
    IdentityProvider,
    ProviderAnswerError,
    SignInError,
    roles_of,
)
from tests.gateway.openid_answers import KEY, Provider, claims_of, running_provider

BACK = "http://127.0.0.1:8080/admin/oidc/callback"


@pytest.fixture
def provider() -> Iterator[Provider]:
    with running_provider() as provider:
        yield provider


def client_of(provider: Provider, **changes: Any) -> IdentityProvider:
    given = {"oidc_issuer": provider.url, "oidc_client_id": "aio", "oidc_roles": "ops=operator"} | changes
    return IdentityProvider(Settings(**given))


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


@pytest.mark.parametrize("claim", ["iss", "aud", "sub", "exp", "nonce"])
async def test_a_token_that_leaves_out_what_binds_it_is_refused(provider: Provider, claim: str) -> None:
    client = client_of(provider)
    attempt = client.new_attempt("/admin")
    provider.claims = claims_of(provider, attempt.nonce)
    del provider.claims[claim]
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


async def user_of(provider: Provider, given: dict[str, Any] | None = None, **settings: Any) -> tuple[str, str]:
    """Name and role of who signs in with these claims."""
    client = client_of(provider, **settings)
    attempt = client.new_attempt("/admin")
    provider.claims = claims_of(provider, attempt.nonce, **given or {})
    user = await client.user("code", attempt, BACK)
    return user.name, user.role


@pytest.mark.parametrize(
    ("roles", "groups", "role"),
    [
        ("ops=operator,leads=admin,*=viewer", ["ops", "leads"], "admin"),
        ("ops=operator,leads=admin,*=viewer", ["ops"], "operator"),
        ("ops=operator,leads=admin,*=viewer", [7, None], "viewer"),
        ("ops=operator,leads=admin", "leads", "admin"),
    ],
)
async def test_the_highest_role_of_the_accounts_groups_holds(
    provider: Provider, roles: str, groups: Any, role: str
) -> None:
    assert await user_of(provider, {"groups": groups}, oidc_roles=roles) == ("ann", role)


async def test_an_account_without_a_group_of_ours_has_no_role(provider: Provider) -> None:
    with pytest.raises(SignInError, match="ann has no role here"):
        await user_of(provider, {"groups": ["interns"]})


async def test_the_first_name_that_can_be_used_is_the_users(provider: Provider) -> None:
    assert (await user_of(provider, {"preferred_username": "a/b", "email": "ann@example.com"}))[0] == "ann@example.com"
    assert (await user_of(provider, {"preferred_username": None, "sub": "s-1"}))[0] == "s-1"
    with pytest.raises(SignInError, match="The account has no name that can be used here"):
        await user_of(provider, {"preferred_username": None, "sub": "a b"})


async def test_an_identity_is_of_issuer_and_subject(provider: Provider) -> None:
    identities = []
    for sub in ("1", "1", "2"):
        client = client_of(provider)
        attempt = client.new_attempt("/admin")
        provider.claims = claims_of(provider, attempt.nonce, sub=sub)
        identities.append((await client.user("code", attempt, BACK)).identity)
    assert identities[0] == identities[1] == hashlib.sha256(f"{provider.url}\0{1}".encode()).hexdigest()
    assert identities[2] != identities[0]


@pytest.mark.parametrize(
    ("secret", "methods", "authorized", "form"),
    [
        ("", None, None, {"client_id": ["aio"]}),
        ("s & t", None, base64.b64encode(b"aio:s+%26+t").decode(), {}),
        ("s & t", ["client_secret_post"], None, {"client_id": ["aio"], "client_secret": ["s & t"]}),
    ],
)
async def test_the_client_identifies_itself_as_the_provider_takes_it(
    provider: Provider, secret: str, methods: list[str] | None, authorized: str | None, form: dict[str, list[str]]
) -> None:
    if methods is not None:
        provider.metadata = {"token_endpoint_auth_methods_supported": methods}
    await user_of(provider, oidc_client_secret=secret)
    assert provider.authorized == [None if authorized is None else f"Basic {authorized}"]
    (sent,) = provider.forms
    assert {name: value for name, value in sent.items() if name.startswith("client_")} == form
    assert (sent["grant_type"], sent["code"]) == (["authorization_code"], ["code"])


async def test_the_user_information_is_asked_for_only_where_groups_are_missing(provider: Provider) -> None:
    await user_of(provider)
    assert "/userinfo_endpoint" not in provider.asked
    provider.metadata, provider.info = {"userinfo_endpoint": None}, {"sub": "1", "groups": ["ops"]}
    client = client_of(provider)
    attempt = client.new_attempt("/admin")
    provider.claims = claims_of(provider, attempt.nonce)
    del provider.claims["groups"]
    with pytest.raises(SignInError, match="has no role"):
        await client.user("code", attempt, BACK)


async def test_what_the_provider_says_of_itself_is_kept_for_an_hour(
    provider: Provider, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 1000.0
    monkeypatch.setattr("gateway.tenancy.users.identity_provider.time.monotonic", lambda: now)
    provider.metadata = {"authorization_endpoint": f"{provider.url}/go?tenant=1"}
    client = client_of(provider)
    attempt = client.new_attempt("/admin")
    addresses = []
    for seconds in (0.0, 3599.5, 0.5):
        now += seconds
        addresses.append(await client.address(attempt, BACK))
    assert provider.asked == ["/.well-known/openid-configuration"] * 2
    assert len(set(addresses)) == 1
    assert addresses[0].startswith(f"{provider.url}/go?tenant=1&response_type=code&client_id=aio&")
    assert {len(value) for value in (attempt.state, attempt.nonce, attempt.verifier)} == {43}
    assert len({attempt.state, attempt.nonce, attempt.verifier}) == 3


async def test_an_answer_that_is_none_is_said(provider: Provider) -> None:
    client = client_of(provider)
    attempt = client.new_attempt("/admin")
    for status, raw, said in (
        (500, b"no \xff", "answered 500: no \ufffd"), (201, b"{}", "answered 201"), (200, b"[", "cannot be read"),
        (200, b" " * (2**20 + 1), "cannot be reached: RefusedBodyError"),
    ):  # fmt: skip
        provider.status, provider.raw = status, raw
        with pytest.raises(SignInError, match=said):
            await client.address(attempt, BACK)
    provider.status, provider.raw = 200, b""
    assert (await client.address(attempt, BACK)).startswith(f"{provider.url}/authorization_endpoint?response_type")


async def test_an_endpoint_without_tls_elsewhere_gets_no_code(provider: Provider) -> None:
    provider.metadata = {"token_endpoint": "http://login.example.com/token"}
    client = client_of(provider)
    with pytest.raises(SignInError, match="must begin with https"):
        await client.user("code", client.new_attempt("/admin"), BACK)


@pytest.mark.parametrize("issuer", ["https://login.example.com", "http://localhost:1", "https://127.0.0.1"])
def test_only_this_machine_is_asked_without_tls(issuer: str) -> None:
    roles = "a=viewer,b=operator,c=admin"
    IdentityProvider(Settings(oidc_issuer=issuer, oidc_client_id="aio", oidc_roles=roles))
    for wrong in ("=viewer", "viewer", "a=viewer,b="):
        with pytest.raises(SettingsError, match="AIO_OIDC_ROLES"):
            roles_of(wrong)
    with pytest.raises(SettingsError, match="must begin with https"):
        IdentityProvider(Settings(oidc_issuer="ftp://localhost", oidc_client_id="aio", oidc_roles=roles))


NESTED, MANGLED = b'{"a":' * 100_000, b'{"keys": "\xff\xfe"}'


@pytest.mark.parametrize(
    "path", ["/.well-known/openid-configuration", "/token_endpoint", "/keys", "/userinfo_endpoint"]
)
@pytest.mark.parametrize("raw", [NESTED, b"[" * 100_000, MANGLED, b"\xff", b"[]", b"null", b"7"])
async def test_an_answer_that_cannot_be_read_is_the_providers_fault(provider: Provider, path: str, raw: bytes) -> None:
    client = client_of(provider)
    attempt = client.new_attempt("/admin")
    provider.claims = claims_of(provider, attempt.nonce, groups=None)
    provider.raw_of[path] = raw
    with pytest.raises(ProviderAnswerError, match="cannot be read"):
        await client.user("code", attempt, BACK)


@pytest.mark.parametrize("name", ["authorization_endpoint", "token_endpoint", "jwks_uri", "userinfo_endpoint"])
@pytest.mark.parametrize(
    "url",
           ["", "x", "http://[", "https://a:99999/", "https://a b\n/", "https://\x00/", "https://",
            "javascript:alert(1)",
            "file:///etc/passwd", "http://169.254.169.254/", "https://" + "a" * 70_000],
)  # fmt: skip
async def test_an_address_in_the_metadata_that_is_none_cannot_be_read(provider: Provider, name: str, url: str) -> None:
    provider.metadata = {name: url}
    client = client_of(provider)
    with pytest.raises(ProviderAnswerError, match="cannot be read"):
        await client.address(client.new_attempt("/admin"), BACK)


@pytest.mark.parametrize("groups", [7, True, 1.5])
async def test_groups_of_a_wrong_type_cannot_be_read(provider: Provider, groups: Any) -> None:
    for roles in ("ops=operator", "*=viewer"):
        with pytest.raises(ProviderAnswerError, match="claim groups is no list of names"):
            await user_of(provider, {"groups": groups}, oidc_roles=roles)


async def test_groups_that_are_null_are_none_and_those_of_an_object_are_its_objects(provider: Provider) -> None:
    provider.info = {"sub": "1"}
    with pytest.raises(SignInError, match="has no role"):
        await user_of(provider, {"groups": None})
    assert await user_of(provider, {"groups": {"ops": {"1": "example.com"}}}) == ("ann", "operator")
    with pytest.raises(SignInError, match="has no role"):
        await user_of(provider, {"groups": {"ops": False}})
    provider.info = {"sub": "1", "groups": ["ops"]}
    assert await user_of(provider, {"groups": None}) == ("ann", "operator")


async def test_two_thousand_groups_sign_in_and_where_the_provider_leaves_them_out_it_says_what_to_do(
    provider: Provider,
) -> None:
    many = [f"{number:08x}-0000-4000-8000-{number:012x}" for number in range(1999)]
    assert await user_of(provider, {"groups": [*many, "ops"]}) == ("ann", "operator")
    provider.info = {"sub": "1"}
    for marks in (
        {"_claim_names": {"groups": "src1"}, "_claim_sources": {"src1": {"endpoint": "https://graph.example"}}},
        {"hasgroups": True},
    ):
        with pytest.raises(SignInError, match=r"so many groups .* AIO_OIDC_GROUPS_CLAIM"):
            await user_of(provider, {"groups": None} | marks, oidc_roles="ops=operator,*=viewer")


@pytest.mark.parametrize(
    "changes", [{"sub": 7}, {"sub": ["1"]}, {"sub": "\ud800"}, {"exp": "soon"}, {"exp": 1e400}, {"exp": [[]]},
                {"aud": 7},                 {"iss": {}}, {"nonce": 1}, {"nbf": {}}, {"iat": "x"}],
)  # fmt: skip
async def test_claims_of_a_wrong_type_are_no_valid_token(provider: Provider, changes: dict[str, Any]) -> None:
    with pytest.raises(SignInError, match="ID token is not valid"):
        await user_of(provider, changes)


@pytest.mark.parametrize("token", ["", ".", "..", "a.b.c", "\x00", "\u20ac.\u20ac.\u20ac", "a" * 300_000, "x." * 9000])
@pytest.mark.parametrize("payload", [None, b"[]", b"7", b"[" * 50_000, b"\xff", b'{"a":' * 20_000])
async def test_a_token_that_is_none_is_not_valid(provider: Provider, token: str, payload: bytes | None) -> None:
    if payload is not None:
        parts = (b'{"alg":"RS256","kid":"%s"}' % (KEY.kid or "").encode(), payload, b"x")
        token = ".".join(base64.urlsafe_b64encode(part).rstrip(b"=").decode() for part in parts)
    provider.raw_of["/token_endpoint"] = json.dumps({"id_token": token}).encode()
    client = client_of(provider)
    with pytest.raises(SignInError, match="ID token is not valid"):
        await client.user("code", client.new_attempt("/admin"), BACK)


@pytest.mark.parametrize(
    "keys", [{}, {"keys": None}, {"keys": [7]}, {"keys": [{}]}, {"keys": [{"kty": "RSA", "n": "\x00", "e": {}}]},
             {"keys": [{"kty": [], "kid": {}}]}, {"keys": {"a": 1}}, {"keys": [[[]]] * 3}, {"keys": []}],
)  # fmt: skip
async def test_keys_of_a_wrong_form_make_no_token_valid(provider: Provider, keys: dict[str, Any]) -> None:
    provider.raw_of["/keys"] = json.dumps(keys).encode()
    with pytest.raises(SignInError, match="ID token is not valid"):
        await user_of(provider)


async def test_one_client_serves_all_sign_ins_and_keeps_no_cookie_of_any(
    provider: Provider, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[httpx.AsyncClient] = []
    begin = httpx.AsyncClient.__init__

    def counted(self: httpx.AsyncClient, **given: Any) -> None:
        made.append(self)
        begin(self, **given)

    monkeypatch.setattr(httpx.AsyncClient, "__init__", counted)
    client = client_of(provider)
    for _ in range(3):
        attempt = client.new_attempt("/admin")
        provider.claims = claims_of(provider, attempt.nonce)
        await client.user("code", attempt, BACK)
    assert len(made) == 1
    assert not made[0].cookies
    await client.close()
    assert made[0].is_closed


def test_an_attempt_is_opened_by_who_knows_the_secret_until_it_expires(tmp_path: Path) -> None:
    attempt = Attempt(state="s", nonce="n", verifier="v", page="/admin")
    private, public = Settings(oidc_client_secret="of the client"), Settings(data_dir=str(tmp_path))
    for settings in (private, public):
        cookie = AttemptSeal(settings).sealed(attempt, 1000.0)
        other_process = AttemptSeal(settings)
        assert other_process.opened(cookie, 1599.0) == attempt
        assert other_process.opened(cookie, 1600.0) is None
        payload, _, signature = cookie.partition(".")
        forged = msgspec.json.encode({"expires": 10**9, "attempt": attempt})
        for wrong in (
            "", ".", payload, f"{payload}.", f"{payload[:-1]}A.{signature}", cookie.swapcase(), forged.hex(),
            "\xff.\u20ac",
            f"{base64.urlsafe_b64encode(forged).decode()}.{signature}",
            AttemptSeal(Settings(oidc_client_secret="x")).sealed(attempt, 1000.0),
        ):  # fmt: skip
            assert other_process.opened(wrong, 1001.0) is None
    assert (tmp_path / KEY_FILE).stat().st_mode & 0o777 == 0o600
