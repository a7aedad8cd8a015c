"""Callers without the right: sign-in, sessions, keys, scopes, pages of other sites, names of hosts."""

import re
import string
from collections.abc import Iterator
from random import Random
from typing import Any
from urllib.parse import quote, urlencode

from tests.attacks.families.bodies import ODD_IDS, operations
from tests.attacks.families.framing import BODY, ROUTES, outcome_of
from tests.attacks.targets import CHAT, FORM, HELLO, Browser, Target
from tests.fuzz.routes import paths_of
from tests.hostile.target import Outcome, attack_class

PAGES = tuple(
    path.removeprefix("/admin")
    for path in paths_of("GET", "/admin")
    if not path.startswith(("/admin/api", "/admin/log", "/admin/oidc", "/admin/static")) and "/x" not in path
)
"""Of the dashboard, for who is signed in."""
SESSION = "aio_session"


@attack_class("headers of pages", 240, "keyed", "open")
def headers_of_pages(target: Target, draw: Random, count: int) -> Iterator[Outcome]:
    """Every page, with a session and without: no other site may frame it, and it runs nothing but its own."""
    for number in range(count):
        path = draw.choice((*ROUTES, *(f"/admin{page}" for page in PAGES), "/docs/", "/nothing", "/admin/nothing"))
        headers = {"accept": "text/html"}
        if target.browsers and draw.random() < 0.7:
            headers["cookie"] = target.browsers[0].cookie
        answer = target.client.ask(draw.choice(("GET", "GET", "GET", "POST")), path, headers=headers)
        lacks = ""
        if "html" in answer.headers.get("content-type", ""):
            policy = answer.headers.get("content-security-policy", "")
            wanted = {
                "a policy": "default-src 'none'" in policy and "frame-ancestors 'none'" in policy,
                "nosniff": answer.headers.get("x-content-type-options") == "nosniff",
                "x-frame-options": answer.headers.get("x-frame-options") == "DENY",
            }
            lacks = ", ".join(name for name, has in wanted.items() if not has)
        yield outcome_of(answer, f"{path} #{number}", lacks and f"the page lacks {lacks}")


@attack_class("sign-in", 350, "keyed", "shared")
def sign_in(target: Target, draw: Random, count: int) -> Iterator[Outcome]:
    """Guessed secrets, forged CSRF tokens and cookies, hostile fields, addresses and destinations."""
    secrets = (
        "",
        "x",
        "admin",
        "' OR '1'='1",
        "\x00",
        "a" * 15_000,
        "\udcff",
        target.keys["bob"],
        target.keys["revoked"],
        target.keys["admin"][:-1],
        target.keys["admin"] + "x",
    )
    nexts = (
        "/admin",
        "//evil.example",
        "https://evil.example",
        "/admin\\@evil.example",
        "/admin/../..//evil.example",
        "javascript:alert(1)",
        "/admin\r\nx: y",
        "/admin/é",
        "/admin?\u20ac",
        "\x00",
        "/admin/" + "a" * 5000,
    )
    for number in range(count):
        stranger = Browser(target.client)
        token = stranger.token(f"/admin/login?next={quote(draw.choice(nexts), safe='', errors='surrogateescape')}")
        cookie = stranger.cookie
        fields: dict[str, str] = {
            "name": draw.choice(["", "", "root", "tester", "ada", "\x00", "x" * 3000]),
            "secret": draw.choice(secrets),
            "next": draw.choice(nexts),
        }
        if draw.random() < 0.6:
            fields["csrf_token"] = draw.choice([token, token, "", "0" * 64, token[:-1], "é"])
        if draw.random() < 0.3:
            cookie = draw.choice(
                [
                    "",
                    f"{SESSION}=",
                    f"{SESSION}=x",
                    f"{SESSION}=\xff",
                    cookie + "; " + cookie,
                    "a=b; " * 900,
                    "=;=;=",
                    '"',
                ]
            )
        headers = {"cookie": cookie} if cookie else {}
        if draw.random() < 0.4:
            address = draw.choice(
                ["127.0.0.1", f"10.0.0.{number % 256}", "x", "::1", "é", "a" * 5000, "1.2.3.4, 5.6.7.8", "[", "\x7f"]
            )
            headers[draw.choice(["x-forwarded-for", "x-real-ip", "forwarded", "x-forwarded-proto"])] = address
        body: Any = urlencode(fields, errors="surrogateescape").encode()
        kind = FORM
        if draw.random() < 0.1:
            kind = draw.choice(
                ["application/json", "multipart/form-data; boundary=b", "text/plain", FORM + "; charset=utf-16"]
            )
        elif draw.random() < 0.1:
            body = draw.choice(
                [
                    b"%",
                    b"&&&==",
                    b"a" * 17_000,
                    b"secret=%ff%fe&name=%00",
                    b"=" * 2000,
                    b"&".join([b"a=b"] * 3000),
                    b"secret[]=x&secret[a]=y",
                ]
            )
        answer = target.client.ask("POST", "/admin/login", body, headers=headers, content_type=kind)
        given = [line.partition(";")[0] for line in answer.headers.get("set-cookie", "").splitlines()]
        opens = any(target.client.ask("GET", "/admin/requests", headers={"cookie": one}).status == 200 for one in given)
        bypass = "signed in" if opens else ""
        where = answer.headers.get("location", "/admin")
        if not where.startswith("/admin") or "\\" in where:
            bypass = "an open redirect"
        yield outcome_of(answer, f"sign-in #{number} {str(fields)[:150]} {str(headers)[:100]}", bypass)
    # Who signed in from here before still can.
    answer = target.browsers[0].sign_in(target.keys["second admin"])
    yield outcome_of(
        answer, "the right key from a known browser", "" if answer.status == 303 else "an administrator is locked out"
    )


@attack_class("CSRF", 120, "keyed")
def csrf(target: Target, draw: Random, count: int) -> Iterator[Outcome]:
    """A signed-in browser's cookie with forms of other pages: tokens of other cookies, of none, constant ones."""
    anonymous = Browser(target.client).token()
    empty = Browser(target.client)
    empty.cookies[SESSION] = ""
    constant = empty.token()
    browser = target.browsers[1]
    cookie = browser.cookie
    forms = (
        "/admin/keys",
        "/admin/teams",
        "/admin/budgets",
        "/admin/users",
        "/admin/logout",
        "/admin/keys/bob/revoke",
        "/admin/keys/bob",
        "/admin/routing/mode",
        "/admin/routing/target",
        "/admin/quality/retrain",
        "/admin/core/common",
    )
    for number in range(count):
        token = draw.choice([None, "", anonymous, constant, "0" * 64, "null", "é"])
        fields = {"name": "planted", "reason": "x"} | ({} if token is None else {"csrf_token": token})
        headers = {"cookie": cookie} | draw.choice([{}, {}, {"x-csrf-token": token or ""}])
        if draw.random() < 0.3:
            path, body, kind = draw.choice(
                [
                    ("/admin/api/keys", b'{"name":"planted"}', "application/json"),
                    ("/admin/api/teams", b'{"name":"planted"}', "text/plain"),
                ]
            )
        else:
            path, body, kind = draw.choice(forms), urlencode(fields).encode(), FORM
        answer = target.client.ask("POST", path, body, headers=headers, content_type=kind)
        yield Outcome(
            f"{path} token {token!r} #{number}",
            answer.status,
            answer.code,
            "" if answer.status >= 400 else "a change without a token of this session",
        )
    # The same cookie still works: no form signed it out.
    yield Outcome(
        "the session afterwards", 200, bypass="" if browser.is_signed_in else "another page signed the user out"
    )


@attack_class("sessions and cookies", 500, "keyed", "shared")
def cookies(target: Target, draw: Random, count: int) -> Iterator[Outcome]:
    """Forged, cut, ended and odd session cookies on every page and administrative route."""
    browser, leaver = target.browsers[2], Browser(target.client)
    name, value = SESSION, browser.cookies[SESSION]
    leaver.cookies = dict(target.browsers[3].cookies)
    ended = f"{SESSION}={leaver.cookies[SESSION]}"
    leaver.ask("POST", "/admin/logout", {"csrf_token": leaver.token("/admin/keys")})
    for number in range(count):
        forged = draw.choice([
            ended, f"{name}={value[:-1]}", f"{name}={value}x", f"{name}={value.swapcase()}", f"{name}={value[::-1]}",
            f"{name}=", name, f"{name}={'A' * len(value)}",
            f"{name}=' OR 1=1 --", f"{name}=\x7f", f"{name}=\xff\xfe", f"{name}=null; {name}=0", f"x{name}={value}",
            f"{name.upper()}={value}", f'{name}="; {name}="',
            f"{name}={value.encode().hex()}", f"{name}={''.join(draw.choices(string.ascii_letters, k=len(value)))}",
            "aio_notice=%3Cscript%3E", f"aio_notice={'%' * 500}", f"{name}={'a' * 7000}",
            f"{name}=%00", f"{name}={target.keys['admin']}", "a=b;" * 500,
        ])  # fmt: skip
        path = draw.choice(
            [
                *(f"/admin{page}" for page in PAGES),
                "/admin/api/keys",
                "/admin/api/requests",
                "/v1/admin/knobs/core",
                "/v1/admin/stats",
            ]
        )
        answer = target.client.ask("GET", path, headers={"cookie": forged})
        yield outcome_of(
            answer, f"{path} {forged[:60]!r} #{number}", "a page without a session" if answer.status == 200 else ""
        )
    yield Outcome("the living session afterwards", 200, bypass="" if browser.is_signed_in else "a session was lost")


@attack_class("keys", 900, "keyed", "shared")
def keys(target: Target, draw: Random, count: int) -> Iterator[Outcome]:
    """Near misses, prefixes, hashes, revoked and expired keys, in every header that could hold one."""
    from hashlib import sha256

    right = target.keys["bob"]
    hashes = [sha256(right.encode()).hexdigest(), sha256(target.keys["admin"].encode()).hexdigest()]
    for number in range(count):
        place = draw.randrange(len(right))
        near = draw.choice([
            right[:-1], right + "x", right[:place] + draw.choice("abcXYZ09-_") + right[place + 1 :], right.swapcase(),
            right[:15], right[:15] + "A" * (len(right) - 15), "",
            target.keys["revoked"], target.keys["expired"], target.keys["admin"][:-1], *hashes, f"sha256:{hashes[0]}",
            right[::-1], right.replace("-", "_"), " " + right[1:],
            "null", "undefined", "Bearer", right[:20] + "\x00" + right[20:], right + "," + right, "sk-aio-" + "A" * 43,
            "\udcff" * 9, right.encode().hex(), "tester=" + target.keys["admin"], "%", "*",
        ])  # fmt: skip
        if near == right:
            continue
        scheme = draw.choice(["Bearer ", "Bearer ", "bearer ", "Basic ", "", "Token ", "Bearer  ", "Bearer\t"])
        header = draw.choice(
            ["authorization", "authorization", "x-api-key", "api-key", "x-aio-key", "proxy-authorization"]
        )
        headers = {header: (scheme if header.endswith("authorization") else "") + near}
        path, method = draw.choice(
            [
                ("/v1/models", "GET"),
                (CHAT, "POST"),
                ("/v1/files", "GET"),
                ("/admin/api/keys", "GET"),
                ("/v1/admin/stats", "GET"),
                ("/tokenize", "POST"),
                ("/v1/admin/reload", "POST"),
            ]
        )
        if draw.random() < 0.1:
            path += "?api_key=" + quote(right)
        answer = target.client.ask(method, path, BODY if method == "POST" else None, headers=headers)
        yield outcome_of(
            answer,
            f"{method} {path} {str(headers)[:120]} #{number}",
            "" if answer.status >= 400 else "a wrong key was taken",
        )


@attack_class("scopes", 450, "keyed", "shared")
def scopes(target: Target, draw: Random, count: int) -> Iterator[Outcome]:
    """Every documented route with every kind of key that may not: no answer but a refusal."""
    may: dict[str, tuple[str, ...]] = {
        "inference": ("bob", "ada"),
        "viewer": ("viewer",),
        "none": ("expired", "revoked"),
    }
    routes = operations(target, ("/v1", "/admin/api"))
    cases = []
    for method, path, operation in routes:
        administers = path.startswith(("/admin/api", "/v1/admin"))
        path = re.sub(r"\{[^}]*\}", "x", path.replace("{number}", "1"))
        body = b"{}" if "requestBody" in operation else None
        forbidden = (*may["none"], *(may["inference"] if administers else ("viewer",)))
        if administers and (method != "GET" or path.endswith("dashboard-users")):
            forbidden += ("viewer",)
        cases += [(method, path, body, who) for who in forbidden]
    draw.shuffle(cases)
    for number in range(count):
        method, path, body, who = cases[number % len(cases)]
        answer = target.client.ask(method, path, body, key=target.keys[who])
        refused = answer.status in (401, 403)
        yield outcome_of(
            answer, f"{method} {path} as {who} #{number}", "" if refused else f"{who} was not refused ({answer.status})"
        )


@attack_class("pages of other sites", 400, "open", "keyed")
def cross_origin(target: Target, draw: Random, count: int) -> Iterator[Outcome]:
    """What a browser sends for a page of another site, port or host name: nothing is changed, nothing is answered."""
    own = f"{target.host}:{target.port}"
    sites = (
        {"origin": "https://evil.example", "sec-fetch-site": "cross-site"}, {"origin": "null",
        "sec-fetch-site": "cross-site"}, {"origin": "http://evil.example"}, {"origin": "null"},
        {"origin": "http://localhost:3000", "sec-fetch-site": "same-site"}, {"origin": f"http://{own}.evil.example"},
        {"origin": f"http://evil.example/{own}"}, {"origin": f"http://{own}@evil.example"},
        {"origin": f"http://{target.host}:{target.port + 1}"}, {"origin": ""}, {"origin": "http://"},
        {"origin": f"https://x.{own}"}, {"origin": f"HTTP://EVIL.EXAMPLE, http://{own}"},
        {"origin": "http://[::1", "sec-fetch-site": "cross-site"}, {"origin": "é"}, {"sec-fetch-site": "x"},
    )  # fmt: skip
    rebound = (
        "evil.example",
        f"evil.example:{target.port}",
        f"{target.host}.evil.example",
        "localhost.evil.example",
        "[",
        "[::1",
        "127.0.0.1.nip.io",
        "evil.example@localhost",
        "localhost:x",
        "é",
        "",
    )
    kinds = (
        "text/plain",
        FORM,
        "multipart/form-data; boundary=b",
        "application/json",
        "",
        "text/plain; charset=application/json",
    )
    changes = (
        (CHAT, BODY), ("/v1/completions", b'{"model":"tier-1","prompt":"x"}'), ("/v1/files", b"--b--"), ("/v1/batches",
        b"{}"), ("/v1/feedback", b"{}"), ("/v1/route", b"{}"), ("/tokenize", b"{}"),
        ("/admin/api/keys", b'{"name":"planted"}'), ("/admin/api/teams", b'{"name":"planted"}'), ("/v1/admin/reload",
        b'{"reason":"x"}'), ("/admin/login", b"secret=x"), ("/admin/keys", b"name=planted"), ("/admin/logout", b""),
    )  # fmt: skip
    for number in range(count):
        path, body = draw.choice(changes)
        if draw.random() < 0.7 or target.has_keys:
            answer = target.client.ask(
                "POST", path, body, headers=draw.choice(sites), content_type=draw.choice(kinds) or None
            )
            label = "cross-site"
        else:
            host = draw.choice(rebound)
            method = draw.choice(["POST", "GET"])
            path = (
                path if method == "POST" else draw.choice(["/v1/models", "/v1/files", "/v1/requests/x", "/v1/batches"])
            )
            answer = target.client.ask(
                method,
                path,
                body if method == "POST" else None,
                headers={"host": host} | draw.choice([{}, {"origin": f"http://{host}"}]),
            )
            label = f"host {host}"
        to_sign_in = answer.status == 303 and answer.headers.get("location", "").startswith("/admin/login")
        bypass = "" if answer.status >= 400 or answer.status <= 0 or to_sign_in else "a page of another site was served"
        yield outcome_of(answer, f"{label} {path} #{number}", bypass)


@attack_class("dashboard forms", 700, "administered", privileged=True)
def dashboard_forms(target: Target, draw: Random, count: int) -> Iterator[Outcome]:
    """Every form and page of the dashboard by who is signed in, with hostile fields and queries: no page fails."""
    browser = target.browsers[0]
    cookie, token = browser.cookie, browser.token("/admin/keys")
    fields = (
        "name", "team", "scopes", "tiers", "models", "quality", "min_tier", "requests_per_minute", "tokens_per_minute",
        "concurrency", "expires_at", "expires_in_days", "days", "aliases", "reason",
        "usd", "amount", "limit_usd", "period", "subject", "grace_hours", "share", "version", "verdict", "role",
        "password", "target", "mode", "model", "knob", "value", "consent", "strict", "note", "tier", "arms",
    )  # fmt: skip
    values = (
        *ODD_IDS,
        "1",
        "5",
        "0.5",
        "1e400",
        "-1e400",
        "nan",
        "inf",
        "1e308",
        "1e-400",
        "9" * 30,
        "on",
        "day",
        "month",
        "total",
        "auto",
        "x=y",
        "a=b,c=d",
        "viewer",
        "admin",
        "<b>x</b>",
        "x" * 12,
        "2030-01-01",
        "99999-01-01",
        "0000-00-00",
    )
    posts = [
        *(path for path in paths_of("POST", "/admin/") if not path.startswith(("/admin/api", "/admin/logout"))),
        *("/admin/keys/bob", "/admin/keys/bob/rotate", "/admin/quality/review/99999999999999999999"),
    ]
    for number in range(count):
        if draw.random() < 0.5:
            query = urlencode(
                [
                    (
                        draw.choice(
                            [
                                "cursor",
                                "limit",
                                "tier",
                                "status",
                                "since",
                                "until",
                                "key",
                                "conversation",
                                "class",
                                "last",
                                "model",
                                "team",
                                "x",
                                "q",
                                "notice",
                                "next",
                            ]
                        ),
                        draw.choice(values),
                    )
                    for _ in range(draw.randint(0, 3))
                ],
                errors="surrogateescape",
            )
            path = "/admin" + draw.choice(
                [
                    *PAGES,
                    "/keys/bob",
                    "/keys/%00",
                    f"/requests/{target.ids['request']}",
                    "/requests/x",
                    "/login",
                    "/requests/" + "a" * 999,
                    "/oidc/login",
                    "/oidc/callback",
                ]
            )
            answer = target.client.ask("GET", f"{path}?{query}", headers={"cookie": cookie})
        else:
            given = {draw.choice(fields): draw.choice(values) for _ in range(draw.randint(1, 6))} | {
                "csrf_token": token
            }
            given.setdefault("reason", "an attack")
            path = draw.choice(posts)
            answer = target.client.ask(
                "POST",
                path,
                urlencode(given, errors="surrogateescape").encode(),
                headers={"cookie": cookie},
                content_type=FORM,
            )
            query = str(given)
        yield Outcome(f"{path}?{query[:200]} #{number}", answer.status, answer.code)
    for page in PAGES:
        after = target.client.ask("GET", f"/admin{page}", headers={"cookie": cookie})
        shown = after.status < 400 and "/login" not in after.headers.get("location", "")
        bypass = "" if shown else "a form broke a page"
        yield Outcome(f"afterwards: {page}", after.status, after.code, bypass)
    chat = target.client.ask("POST", CHAT, {"model": "tier-1", "messages": HELLO}, key=target.keys["ada"])
    yield Outcome(
        "afterwards: a chat", chat.status, chat.code, "" if chat.status == 200 else "a form broke the gateway"
    )
