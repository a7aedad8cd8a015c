"""What an OpenID provider answers, or says in its tokens, and what browsers bring back from it."""

import base64
import gzip
import html
import json
import re
from collections.abc import Callable, Iterator
from random import Random
from typing import Any
from urllib.parse import parse_qs, quote, urlencode, urlsplit

from joserfc.jwk import KeySet, OctKey, RSAKey

from tests.attacks.exchange import Answer
from tests.attacks.families.access import SESSION
from tests.attacks.families.framing import outcome_of
from tests.attacks.targets import Target
from tests.fuzz.hostile_json import hostile
from tests.gateway.openid_answers import KEY, Provider, claims_of
from tests.hostile.target import Outcome, attack_class

DISCOVERY, TOKENS, KEYS, INFO = "/.well-known/openid-configuration", "/token_endpoint", "/keys", "/userinfo_endpoint"
STRANGERS = ["guests"]
"""Groups without a role."""
# Inputs between which one signs in rightly.
CONTROL = 25
# What is kept of the provider's metadata once it is right is read no more: what is wrong with it comes first.
OF_METADATA = 5
OTHER_KEY = RSAKey.generate_key(2048, auto_kid=True)
SHARED = OctKey.import_key(base64.b64encode(KEY.as_der(private=False)))


PLACES = ("/admin", "/admin/requests", "/admin/login", "/docs", "/docs/openapi.json", "/", "/admin/oidc/login", "/x")
ROOTS = (
    "/team/ai", "/ai/", "//evil.example", "/\\evil.example", "https://evil.example", "evil.example",
    "/../..//evil.example", "/a/./b", "/a//b", '/a"><script>alert(1)</script>', "/a' onmouseover='x", "/a;x=y",
    "/a?x#y", "/a%0d%0aset-cookie:%20x", "/a\tb", "/\xe9", "/admin", "/v1", "/a,/b", "/" + "a" * 5000, "", " ",
)  # fmt: skip
_PLAIN = re.compile(r"(/[A-Za-z0-9._~-]+)+")


@attack_class("paths of proxies", 300, "sign-on")
def paths_of_proxies(target: Target, draw: Random, count: int) -> Iterator[Outcome]:
    """Paths below which a trusted proxy, or a client through it, says that the gateway is served: no redirect leads
    elsewhere, no header and no element is made of one, and no page opens without a session."""
    for number in range(count):
        root, place = draw.choice(ROOTS), draw.choice(PLACES)
        path = draw.choice([place, root + place if _PLAIN.fullmatch(root) else place])
        headers = {"x-forwarded-prefix": root, "x-forwarded-for": f"10.99.{number >> 8 & 255}.{number & 255}"}
        if draw.random() < 0.2:
            headers["forwarded"] = f"for=10.0.0.1;prefix={root}"
        answer = target.client.ask("GET", path, headers=headers)
        where, text = answer.headers.get("location", ""), answer.text
        provided = target.provider is not None and where.startswith(f"{target.provider.url}/")
        bypass = ""
        if where and not provided and (not where.startswith("/") or where.startswith("//") or "\\" in where):
            bypass = f"a redirect to {where}"
        elif "evil.example" in text.replace(html.escape(path), "") or "<script>alert" in text or "onmouseover" in text:
            bypass = "the path is in a page"
        elif place.startswith("/admin/requests") and answer.status == 200:
            bypass = "a page without a session"
        yield outcome_of(answer, f"{path[:80]} {root[:80]!r} #{number}", bypass)


@attack_class("answers of sign-in providers", 900, "sign-on", privileged=True)
def provider_answers(target: Target, draw: Random, count: int) -> Iterator[Outcome]:
    """Metadata, keys, tokens, claims and user information that are no such thing; forged tokens and codes: none gives
    a session, the answer says whose fault it is, and the right account signs in all the while."""
    provider = target.provider
    assert provider is not None
    for number in range(count):
        _reset(provider)
        if number < count // OF_METADATA:
            kind = "metadata"
            _spoil_metadata(provider, draw)
        else:
            kind = "sound" if number % CONTROL == 0 else draw.choice(list(KINDS))
        yield from _attempt(target, provider, draw, kind, number)
    _reset(provider)
    rows = target.order("GET", "/admin/api/dashboard-users")["rows"]
    if any((row["name"], row["role"]) != ("ann", "viewer") for row in rows):
        yield Outcome("users afterwards", 200, bypass=f"the provider made users: {rows}"[:300])


def _attempt(target: Target, provider: Provider, draw: Random, kind: str, number: int) -> Iterator[Outcome]:
    # Of a network of its own, as behind a proxy: else the limits end the attack.
    headers = {"x-forwarded-for": f"10.{number >> 16 & 255}.{number >> 8 & 255}.{number & 255}"}
    label = f"{kind} #{number}"
    answer = target.client.ask("GET", "/admin/oidc/login", headers=headers)
    if answer.status != 303:
        yield outcome_of(answer, label)._replace(expected=kind == "metadata" and answer.status in (502, 503))
        return
    asked = parse_qs(urlsplit(answer.headers["location"]).query)
    if "nonce" not in asked:
        yield outcome_of(answer, label)
        return
    nonce, state = asked["nonce"][0], asked["state"][0]
    groups = ["ops"] if kind in ("sound", *FORGED) else STRANGERS
    provider.claims = claims_of(provider, nonce, groups=groups)
    provider.info = {"sub": "1"}
    query, cookie = {"code": "c", "state": state}, answer.headers["set-cookie"].partition(";")[0]
    if kind == "callback":
        provider.claims["groups"] = ["ops"]
        query, cookie = _spoilt_return(draw, query, cookie)
    elif kind in KINDS:
        KINDS[kind](provider, draw)
    headers["cookie"] = cookie
    back = target.client.ask(
        "GET", f"/admin/oidc/callback?{urlencode(query, errors='surrogateescape')}", headers=headers
    )
    is_in = _opens(target, back)
    bypass = "the right account is kept out" if kind == "sound" and not is_in else ""
    if is_in and kind != "sound":
        bypass = "signed in"
    is_providers = kind not in ("sound", "callback", *FORGED) and back.status in (502, 503)
    yield outcome_of(back, f"{label} {provider.raw_of}"[:300], bypass)._replace(expected=is_providers)


def _reset(provider: Provider) -> None:
    """Answer rightly."""
    provider.key, provider.algorithm, provider.payload = KEY, "RS256", b""
    provider.status, provider.raw, provider.info = 200, b"", {}
    for changed in (provider.raw_of, provider.headers, provider.metadata, provider.forms, provider.asked):
        changed.clear()
    provider.authorized.clear()


def _opens(target: Target, answer: Answer) -> bool:
    """Whether a cookie of the answer is a session."""
    given = [line.partition(";")[0] for line in answer.headers.get("set-cookie", "").splitlines()]
    given = [one for one in given if one.startswith(SESSION)]
    return any(target.client.ask("GET", "/admin/requests", headers={"cookie": one}).status == 200 for one in given)


def _spoil_metadata(provider: Provider, draw: Random) -> None:
    # Under another name, so that none of it is kept.
    provider.issuer = None
    sound = provider.answer(DISCOVERY) | {"issuer": "http://127.0.0.1:1", "scopes_supported": ["openid"]}
    if draw.random() < 0.2:
        _spoil_transport(provider, draw, DISCOVERY)
    else:
        provider.raw_of[DISCOVERY] = hostile(sound, draw) or b" "


def _spoil_transport(provider: Provider, draw: Random, path: str = "") -> None:
    """Statuses, codings, redirects and sizes that no JSON has."""
    kind = draw.randrange(5)
    path = path or draw.choice((TOKENS, KEYS))
    if kind == 0:
        provider.status = draw.choice((199, 204, 206, 301, 304, 401, 404, 500, 503, 599))
    elif kind == 1:
        provider.headers = {"location": draw.choice(("http://169.254.169.254/", "/", "file:///etc/passwd", "\x7f"))}
        provider.status = draw.choice((301, 302, 307, 308))
    elif kind == 2:
        provider.raw_of[path] = draw.choice((b"\x1f\x8b\x08\x00", gzip.compress(bytes(40 << 20)), b"{}"))
        provider.headers = {"content-encoding": draw.choice(("gzip", "br", "zstd", "deflate", "x, gzip", "gzip, gzip"))}
    elif kind == 3:
        provider.raw_of[path] = draw.choice((b" ", b'"', b"[")) * (2 << 20)
    else:
        provider.raw_of[path] = json.dumps({"id_token": "x" * 900_000, "keys": [{}] * 20_000}).encode()


def _spoil_keys(provider: Provider, draw: Random) -> None:
    provider.raw_of[KEYS] = hostile(KeySet([KEY]).as_dict() | {"alg": "RS256"}, draw) or b" "


def _spoil_tokens(provider: Provider, draw: Random) -> None:
    sound = {"access_token": "a", "token_type": "Bearer", "expires_in": 60, "id_token": provider.token()}
    provider.raw_of[TOKENS] = hostile(sound, draw) or b" "


def _spoil_information(provider: Provider, draw: Random) -> None:
    del provider.claims["groups"]
    provider.raw_of[INFO] = hostile({"sub": "1", "groups": STRANGERS, "email": "ann@example.com"}, draw) or b" "


def _spoil_claims(provider: Provider, draw: Random) -> None:
    more = {"azp": "aio", "hasgroups": True, "_claim_names": {"groups": "s"}, "email": "ann@example.com"}
    some = dict(draw.sample(list(more.items()), draw.randint(0, len(more))))
    provider.payload = hostile(provider.claims | some, draw) or b" "


def _spoil_head(provider: Provider, draw: Random) -> None:
    head = {"alg": "RS256", "kid": KEY.kid, "typ": "JWT", "crit": ["b64"], "b64": False, "jku": "http://127.0.0.1/"}
    kept = {name: value for name, value in head.items() if name in ("alg", "kid") or draw.random() < 0.3}
    parts = (hostile(kept, draw), json.dumps(provider.claims).encode(), draw.randbytes(256))
    token = ".".join(base64.urlsafe_b64encode(part).rstrip(b"=").decode() for part in parts)
    provider.raw_of[TOKENS] = json.dumps({"id_token": token}).encode()


def _sign_by_another(provider: Provider, draw: Random) -> None:
    provider.key = OTHER_KEY


def _sign_by_none(provider: Provider, draw: Random) -> None:
    provider.algorithm = "none"


def _sign_by_the_public_key(provider: Provider, draw: Random) -> None:
    provider.algorithm, provider.key = "HS256", SHARED


def _change_the_signature(provider: Provider, draw: Random) -> None:
    head, payload, signature = provider.token().split(".")
    payload = draw.choice((payload, payload[:-4], payload.swapcase(), ""))
    signature = draw.choice((signature[:-4], signature[::-1], "", "A" * len(signature)))
    provider.raw_of[TOKENS] = json.dumps({"id_token": f"{head}.{payload}.{signature}"}).encode()


def _be_for_another(provider: Provider, draw: Random) -> None:
    name, value = draw.choice((
        ("aud", "other"), ("aud", ["other"]), ("aud", []), ("iss", provider.url + "/x"), ("iss", None),
        ("exp", 1), ("exp", 0), ("exp", -1), ("exp", None), ("exp", "9e9"), ("nonce", "n"), ("nonce", None),
        ("nonce", ""), ("sub", None), ("sub", ["1"]), ("azp", "other"), ("iat", 1 << 40), ("nbf", 1 << 40),
    ))  # fmt: skip
    provider.claims[name] = value


def _spoilt_return(draw: Random, query: dict[str, str], cookie: str) -> tuple[dict[str, str], str]:
    """A callback that this browser did not begin."""
    name, _, value = cookie.partition("=")
    state, kind = query["state"], draw.randrange(4)
    if kind == 0:
        wrong = ("", "x", "\x00", "é", "\udcff", "a" * 6000, state[:-1], state + "=", "null")
        return query | {"state": draw.choice(wrong)}, cookie
    if kind == 1:
        body, _, signature = value.strip('"').partition(".")
        forged = (
            "", body, f"{body}.", f".{signature}", f"{body}.{signature[:-2]}", f"{body[:-2]}.{signature}", "x.y",
            "%00.", f"{body.swapcase()}.{signature}", f"{signature}.{body}", "." * 300, quote("é.é"), "A" * 5000,
        )  # fmt: skip
        return query, f"{name}={draw.choice(forged)}"
    if kind == 2:
        return {"error": draw.choice(("access_denied", "<script>", "\x00", "x" * 5000)), "state": state}, cookie
    return query, draw.choice(("", f"{name}x={value}", f"{name}={value}x", "=", ";" * 50))


Spoil = Callable[[Provider, Random], Any]
FORGED: dict[str, Spoil] = {
    "another key": _sign_by_another,
    "no signature": _sign_by_none,
    "the public key as a secret": _sign_by_the_public_key,
    "a changed signature": _change_the_signature,
    "of another": _be_for_another,
}
KINDS: dict[str, Spoil] = {
    "transport": _spoil_transport, "keys": _spoil_keys, "tokens": _spoil_tokens, "claims": _spoil_claims,
    "information": _spoil_information, "head": _spoil_head, "callback": lambda *_: None, **FORGED,
}  # fmt: skip
