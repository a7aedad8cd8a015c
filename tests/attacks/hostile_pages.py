"""Hostile values in every place of a request to the dashboard: `python -m tests.attacks.hostile_pages`.

Prints what was answered with a 5xx other than 503, by route and place. Bounded, and against a process of its own.
"""

import random
import socket
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import NamedTuple

import httpx

from gateway.base.settings import Settings
from gateway.http import http_app
from tests.gateway.operations.dashboard.browsing import forms_of
from tests.support.administrator import ADMIN_KEY
from tests.support.served import ServedProcess, served
from tests.support.upstream import running_upstream, write_remote_catalog

# As they stand in a URL, a form or a header.
VALUES = (
    b"", b"0", b"-1", b"1e400", b"NaN", b"Infinity", b"-inf", b"9" * 30, b"1" * 5000, b"9223372036854775808",
    b"-9223372036854775809", b"1e308", b"5e-324", b"1_000", b"0x10", b"%D9%A3", b"%00", b"a%00b", b"%FF%FE",
    b"%ED%A0%80", b"\xff\xfe", b"\xc3\xa9", b"%C3%A9", b"%F0%9F%98%80", b"%", b"%zz",
    b"a" * 7000, b"'%22%3E%3Cscript%3E",
    b"..%2f..%2fetc", b"%0d%0aset-cookie:x=y", b"[", b"%5B%5D", b"null", b"true", b"%7B%7D",
    b"a,b,,c", b"2026-13-45",
    b"/admin%5Cx", b"/admin/%E2%80%AE", b"/admin?%F0%9F%98%80", b";", b"1;2", b"%7B%7B7*7%7D%7D", b"%25s%25n",
    b"99999999999.9", b"-62135596801", b"253402300800", b"eyJ9", b"W10", b"WzEsIG51bGxd", b"WzFlNDAwLDFd",
)  # fmt: skip
NAMES = (
    "next", "code", "state", "error", "cursor", "limit", "since", "until", "before", "tier", "status",
    "key_id", "team_id",
    "model", "quality_target", "quality", "format", "tag", "last", "outcome", "request_id", "prompt_class",
    "days", "kind",
    "version", "action", "subject", "actor", "cause", "group", "hours", "by", "reason", "name", "text", "q",
    "role", "period",
)  # fmt: skip
FIELDS = (
    "name", "secret", "password", "role", "reason", "quality_target", "quality", "tier", "version", "share",
    "key", "team",
    "team_id", "scopes", "amount_usd", "period", "subject", "subject_kind",
    "requests_per_minute", "tokens_per_minute",
    "expires_at", "expires_days", "days", "minutes", "label", "verdict", "mode", "arm", "target",
    "model", "was.name",
    "chunk_tokens", "token_budget", "k", "max_running", "grace_hours", "models", "tags", "tiers",
    "next", "treatment",
)  # fmt: skip
HEADERS = (
    "host", "cookie", "accept", "accept-language", "origin", "referer", "sec-fetch-site",
    "x-csrf-token", "authorization",
    "x-api-key", "x-forwarded-for", "x-forwarded-proto", "forwarded", "x-request-id",
    "content-type", "if-none-match",
    "traceparent", "x-http-method-override", "range",
)  # fmt: skip
HEADER_VALUES = (
    b"[", b"[::1", b"[]", b"a:99999", b"a:b", b"a b", b"a,b", b"\xff\xfe", b"\xc3\xa9", b"'\"><", b"=",
    b";;;", b"a=b=c;=;",
    b"aio_session=", b"aio_session=\xff", b"aio_session=%00", b'aio_session="a;b"', b"aio_notice=%FF%00\xe9",
    b"aio_oidc=zz", b"aio_oidc=7b7d", b"__Host-aio_session=x",
    b"text/html;q=\xff", b"text/html;q=nan,*/*;q=1e999",
    b"multipart/form-data",
    b"multipart/form-data; boundary=\xff", b"application/x-www-form-urlencoded; charset=utf-16",
    b"application/x-www-form-urlencoded; charset=no-such", b"multipart/form-data; boundary=b; charset=no-such",
    b"/", b"/;",
    b"Bearer \xff", b"Bearer", b"Basic Og==", b"for=\"[::1]:x\";proto=x, for=_a", b"https, http",
    b"a" * 7000, b"null",
    b"http://[", b"bytes=-0",
)  # fmt: skip


class Shot(NamedTuple):
    """A request: its place and value for the report, and its bytes."""

    where: str
    value: bytes
    data: bytes


def routes() -> tuple[list[str], list[str]]:
    """Return the paths of the dashboard and of its JSON lists that are read, and those that are changed by forms."""
    read, changed = set(), set()
    for route in http_app(Settings(), nullcontext).routes:
        methods = getattr(route, "methods", set())
        if route.path.startswith("/admin") and not route.path.endswith("/events"):
            read |= {route.path} if "GET" in methods else set()
            changed |= {route.path} if "POST" in methods and not route.path.startswith("/admin/api") else set()
    return sorted(read | {"/"}), sorted(changed - {"/admin/logout"})


class Visitor(NamedTuple):
    """Who is signed in: the Cookie header, the CSRF token, and ids of what there is, by the paths' parameters."""

    cookie: bytes
    token: str
    ids: dict[str, str]


def shots(visitor: Visitor, chosen: float, seed: int = 7) -> Iterator[Shot]:
    """Yield a share of all combinations of places and values."""
    token, ids = visitor.token, visitor.ids
    rng = random.Random(seed)
    read, changed = routes()
    heads = b"\r\nHost: localhost\r\nCookie: " + visitor.cookie
    for path in read:
        for value in VALUES:
            filled = _filled(path, value)
            if "{" in path and rng.random() < 4 * chosen:
                yield Shot(f"GET {path}", value, b"GET " + filled + b" HTTP/1.1" + heads + b"\r\n\r\n")
            for name in NAMES:
                if rng.random() < chosen:
                    line = b"GET " + _existing(path, ids) + b"?" + name.encode() + b"=" + value + b" HTTP/1.1"
                    yield Shot(f"GET {path}?{name}", value, line + heads + b"\r\n\r\n")
            if rng.random() < 4 * chosen:
                line = b"GET " + _existing(path, ids) + b"?" + value + b"&=" + value + b" HTTP/1.1"
                yield Shot(f"GET {path}?", value, line + heads + b"\r\n\r\n")
    for path in (*read, *changed):
        for name in HEADERS:
            for value in HEADER_VALUES:
                if rng.random() < chosen:
                    kept = heads if name != "cookie" else b"\r\nHost: localhost"
                    kept = kept.replace(b"Host: localhost\r\n", b"") if name == "host" else kept
                    line = (b"GET " if path in read else b"POST ") + _existing(path, ids) + b" HTTP/1.1" + kept
                    body = b"" if path in read else f"csrf_token={token}&name=a&secret=b".encode()
                    form = b"\r\nContent-Type: application/x-www-form-urlencoded" if name != "content-type" else b""
                    length = b"\r\nContent-Length: %d" % len(body)
                    data = line + b"\r\n" + name.encode() + b": " + value + form + length + b"\r\n\r\n" + body
                    yield Shot(f"{name} of {path}", value, data)
    for path in changed:
        for value in VALUES:
            for name in FIELDS:
                if rng.random() < chosen:
                    given = f"csrf_token={token}&reason=a&".encode() + name.encode() + b"=" + value
                    yield Shot(f"POST {path} {name}", value, _post(_existing(path, ids), heads, given))
            everything = b"&".join(name.encode() + b"=" + value for name in FIELDS)[:15_000]
            if rng.random() < 4 * chosen:
                given = f"csrf_token={token}&".encode() + everything
                yield Shot(f"POST {path} all", value, _post(_filled(path, value or b"1"), heads, given))


def _filled(path: str, value: bytes) -> bytes:
    """Put the value into all parameters of a path."""
    parts = [value.replace(b"/", b"%2F") or b"x" if part.startswith("{") else part.encode() for part in path.split("/")]
    return b"/".join(parts)


def _existing(path: str, ids: dict[str, str]) -> bytes:
    """Put ids of what there is into a path."""
    parts = [ids.get(part[1:].partition(":")[0], "1") if part.startswith("{") else part for part in path.split("/")]
    return "/".join(parts).encode()


def _post(path: bytes, heads: bytes, body: bytes) -> bytes:
    form = b"\r\nContent-Type: application/x-www-form-urlencoded\r\nContent-Length: %d\r\n\r\n" % len(body)
    return b"POST " + path + b" HTTP/1.1" + heads + form + body


def status_of(url: str, data: bytes) -> int:
    """Send a request and return the status of its answer; 0 if the connection ends without one."""
    host, port = url.removeprefix("http://").split(":")
    with suppress(OSError), socket.create_connection((host, int(port)), timeout=60) as connection:
        connection.sendall(data)
        received = b""
        while b" " not in received or len(received) < len(b"HTTP/1.1 200 "):
            piece = connection.recv(4096)
            if not piece:
                break
            received += piece
        return int(received[9:12] or 0)
    return 0


def visitor_of(aio: ServedProcess) -> Visitor:
    """Sign in, make a key and send a request."""
    chat = {"model": "auto", "messages": [{"role": "user", "content": "Hello"}]}
    request_id = httpx.post(f"{aio.url}/v1/chat/completions", json=chat, timeout=60).headers.get("x-request-id", "1")
    key = aio.admin.post("/admin/api/keys", json={"name": "a key"}).raise_for_status().json()["key_id"]
    with httpx.Client(base_url=aio.url, timeout=60) as client:
        form = forms_of(client.get("/admin/login"))["/admin/login"]["fields"]
        assert client.post("/admin/login", data=form | {"secret": ADMIN_KEY}).status_code == 303
        page = client.get("/admin/requests")
        cookie = "; ".join(f"{name}={value}" for name, value in client.cookies.items())
        token = forms_of(page)["/admin/logout"]["fields"]["csrf_token"]
        return Visitor(cookie.encode(), token, {"request_id": request_id, "key": key, "name": "olga"})


def failures(aio: ServedProcess, chosen: float, seed: int = 7) -> tuple[Counter[int], list[tuple[int, Shot]]]:
    """Send a share of the shots; return the statuses, and the shots that the gateway failed to answer."""
    statuses: Counter[int] = Counter()
    failed = []
    for shot in shots(visitor_of(aio), chosen, seed):
        status = status_of(aio.url, shot.data)
        statuses[status] += 1
        if status in (0, 500, 502, 504):
            failed.append((status, shot))
    return statuses, failed


def main(chosen: float = 0.05, seed: int = 7) -> None:
    """Attack a gateway of its own and print the failures."""
    with tempfile.TemporaryDirectory() as folder, running_upstream() as upstream:
        data = Path(folder)
        catalog = write_remote_catalog(data / "catalog.toml", upstream.base_url)
        with served(data, data / "cache", "--catalog", str(catalog)) as aio:
            statuses, failed = failures(aio, chosen, seed)
            print(sum(statuses.values()), "requests:", dict(sorted(statuses.items())))
            for status, shot in failed[:200]:
                print(status, shot.where, shot.value[:40])
            print((data / "log").read_text()[-8000:] if failed else "")


if __name__ == "__main__":
    main(*(float(given) for given in sys.argv[1:2]), *(int(given) for given in sys.argv[2:3]))
