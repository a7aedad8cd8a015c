"""Requests that are wrong as HTTP: heads without end, ambiguous bodies, odd methods, paths and headers."""

from collections.abc import Iterator
from random import Random

from tests.attacks.exchange import Answer
from tests.attacks.targets import CANARY, CHAT, Target
from tests.fuzz.routes import paths_of
from tests.hostile.target import Outcome, attack_class

BODY = b'{"model":"tier-1","messages":[{"role":"user","content":"Hello there"}]}'
METHODS = (
    "GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "CONNECT", "PROPFIND", "PROPPATCH",
    "MKCOL", "COPY", "MOVE", "LOCK", "UNLOCK", "SEARCH", "PURGE", "LINK", "UNLINK", "MERGE", "REPORT", "SUBSCRIBE",
    "NOTIFY", "BREW", "get", "post", "G", "GETT", "PRI", "SOURCE", "QUERY",
)  # fmt: skip
ROUTES = (
    *paths_of("GET", "/"),
    *paths_of("POST", "/v1", "/tokenize", "/admin/log"),
    "/v1/chat/completions/ws",
)
SECRET_FILES = (b"root:x:0:0", b"[boot loader]", b"SQLite format 3", b"-----BEGIN", b"import msgspec")
"""What a file of this machine would show."""


def leaks(answer: Answer) -> str:
    """What an answer shows that no ordinary caller may see, else empty."""
    if CANARY.encode() in answer.body:
        return "another tenant's text"
    if any(text in answer.body for text in SECRET_FILES):
        return "a file"
    if b"Traceback (most recent call last)" in answer.body:
        return "a traceback"
    return ""


def outcome_of(answer: Answer, label: str, bypass: str = "") -> Outcome:
    """The outcome of one answer to an ordinary caller."""
    return Outcome(label[:300], answer.status, answer.code, bypass or leaks(answer))


def _head(target: Target, method: str = "POST", path: str = CHAT, *lines: bytes) -> bytes:
    """A request's head with bob's key and these lines."""
    key = b"" if target.caller is None else b"Authorization: Bearer %b\r\n" % target.caller.encode()
    start = f"{method} {path} HTTP/1.1\r\nHost: {target.host}:{target.port}\r\n".encode()
    return start + key + b"".join(line + b"\r\n" for line in lines)


@attack_class("request heads", 500, "keyed", "shared")
def request_heads(target: Target, draw: Random, count: int) -> Iterator[Outcome]:
    """Endless, cut off and damaged request lines and headers."""
    good = (
        _head(target, "POST", CHAT, b"Content-Type: application/json", b"Content-Length: %d" % len(BODY))
        + b"\r\n"
        + BODY
    )
    for number in range(count):
        kind = draw.randrange(6)
        if kind == 0:  # any byte of the head replaced
            damaged = bytearray(good)
            for _ in range(draw.randint(1, 8)):
                damaged[draw.randrange(len(good) - len(BODY))] = draw.randrange(256)
            sent = bytes(damaged)
        elif kind == 1:  # cut off
            sent = good[: draw.randrange(1, len(good) - len(BODY))]
        elif kind == 2:  # bytes put in
            place = draw.randrange(len(good) - len(BODY))
            sent = (
                good[:place] + draw.choice([b"\0", b"\r", b"\n", b"\r\n", b"\xff" * 9, b" " * 99, b":"]) + good[place:]
            )
        elif kind == 3:  # too long
            name = draw.choice([b"Cookie", b"X-A", b"Authorization", b"Host", b"Content-Type", b"Accept"])
            line = name + b": " + b"a" * draw.choice([8191, 16_300, 16_500, 65_000, 70_000, 300_000])
            sent = _head(target, "POST", CHAT, line, b"Content-Length: %d" % len(BODY)) + b"\r\n" + BODY
        elif kind == 4:  # too many
            lines = [b"x-%d: %d" % (place, place) for place in range(draw.choice([99, 101, 1000, 20_000]))]
            sent = _head(target, "GET", "/v1/models", *lines) + b"\r\n"
        else:  # no HTTP
            sent = draw.choice([
                b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + draw.randbytes(300),
                b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", b"SSH-2.0-x\r\n", b"GET / HTTP/9.9\r\n\r\n", b"GET /\r\n\r\n",
                b"\r\n" * draw.choice([3, 5000]) + good, draw.randbytes(200) + b"\r\n\r\n", b"EHLO x\r\n",
                b"PROXY TCP4 127.0.0.1 127.0.0.1 1 2\r\n" + good,
            ])  # fmt: skip
        yield outcome_of(target.client.raw(sent)[0], f"head {kind} #{number}: {sent[:80]!r}")


@attack_class("request smuggling", 400, "keyed", "shared")
def smuggling(target: Target, draw: Random, count: int) -> Iterator[Outcome]:
    """Bodies of two lengths: what follows the first must not be answered as a request of its own."""
    marker = "/smuggled-4711"
    hidden = _head(target, "GET", marker) + b"\r\n"
    chunked = b"%x\r\n%b\r\n0\r\n\r\n" % (len(BODY), BODY)
    codings = (
        b"chunked", b"Chunked", b"xchunked", b"chunked, identity", b"identity, chunked", b"chunked\x0b", b"\x0bchunked",
        b" chunked", b"chunked;q=1", b'"chunked"', b"chunked, chunked", b"gzip, chunked", b"identity", b"",
        b"chun\0ked",
    )  # fmt: skip
    for number in range(count):
        kind = draw.randrange(8)
        length = b"Content-Length: %d"
        body = b"0\r\n\r\n" + hidden
        if kind == 0:  # both, the coding before or behind
            lines = [length % draw.choice([len(body), 5, 0, 4]), b"Transfer-Encoding: " + draw.choice(codings)]
            draw.shuffle(lines)
        elif kind == 1:  # two lengths
            body = BODY + hidden
            lines = [length % len(BODY), length % (len(BODY) + len(hidden))]
            draw.shuffle(lines)
        elif kind == 2:  # a length that is no number
            given = draw.choice([b"+%d", b"0x%x", b"%d, %d", b"%d ,", b"%d;", b"-%d", b"%d.0", b"%de0", b"\t%d\x0b"])
            body = BODY + hidden
            lines = [b"Content-Length: " + (given % ((len(BODY),) * given.count(b"%")))]
        elif kind == 3:  # two codings
            lines = [b"Transfer-Encoding: " + draw.choice(codings), b"Transfer-Encoding: " + draw.choice(codings)]
            lines.append(length % len(body))
        elif kind == 4:  # odd names
            name = draw.choice([
                b"Transfer-Encoding ", b"Transfer_Encoding", b"Transfer-Encoding\t", b" Transfer-Encoding",
                b"X: y\nTransfer-Encoding", b"X: y\rTransfer-Encoding", b"Transfer-Encoding\0",
            ])  # fmt: skip
            lines = [length % len(body), name + b": chunked"]
        elif kind == 5:  # folded lines
            lines = [
                length % len(body),
                b"Transfer-Encoding:" + draw.choice([b"\r\n chunked", b"\n chunked", b"\r\n\tchunked"]),
            ]
        elif kind == 6:  # sizes of chunks that are no sizes
            size = draw.choice([
                b"%x;\n" % len(BODY), b"0x%x\r\n" % len(BODY), b"-1\r\n", b"ffffffffffffffff\r\n",
                b"fffffffffffffffff\r\n",
                b"%x \r\n" % len(BODY), b"+%x\r\n" % len(BODY), b"\r\n", b"%x\n" % len(BODY), b"1_0\r\n", b"g\r\n",
                b"%x\r\r\n" % len(BODY),
            ])  # fmt: skip
            lines, body = [b"Transfer-Encoding: chunked", length % 7], size + BODY + b"\r\n0\r\n\r\n" + hidden
        else:  # a body where there is none
            answers = target.client.raw(_head(target, "GET", "/v1/models", length % len(hidden)) + b"\r\n" + hidden)
            yield _smuggled(answers, marker, f"smuggling {kind} #{number}")
            continue
        sent = _head(target, "POST", CHAT, b"Content-Type: application/json", *lines) + b"\r\n"
        body = body if kind != 3 else chunked + hidden
        # A body that ends with its chunks is followed by a request of the same client, as HTTP has it.
        only_chunked = kind == 3 and b"Content-Length" not in sent
        yield _smuggled(
            target.client.raw(sent + body), "" if only_chunked else marker, f"smuggling {kind} #{number}: {sent!r}"
        )


def _smuggled(answers: list[Answer], marker: str, label: str) -> Outcome:
    second = bool(marker) and any(marker.encode() in answer.body or answer.status == 404 for answer in answers)
    return outcome_of(answers[0], label, "a request inside a body was answered" if second else "")


@attack_class("methods", 600, "keyed", "open")
def methods(target: Target, draw: Random, count: int) -> Iterator[Outcome]:
    """Every method on every route, with methods that the route does not have named by headers and queries, too."""
    for number in range(count):
        method, path = draw.choice(METHODS), draw.choice(ROUTES)
        headers = draw.choice(
            [{}, {"x-http-method-override": "DELETE"}, {"x-method-override": "PUT"}, {"connection": "upgrade"}]
        )
        path += draw.choice(["", "?_method=DELETE", "?" + "a=b&" * 500])
        if path == "/health/live" and method == "CONNECT":
            path = "example.org:443"
        answer = target.ask(method, path, draw.choice([None, {}, b"", b"x"]), headers=headers)
        administers = path.startswith(("/admin/api", "/v1/admin")) and answer.status < 300 and method != "OPTIONS"
        bypass = "administration without a key" if administers else ""
        if method == "TRACE" and target.caller is not None and target.caller.encode() in answer.body:
            bypass = "the key is repeated"
        yield outcome_of(answer, f"{method} {path[:60]} {headers} #{number}", bypass)


@attack_class("paths", 1200, "keyed", "laptop")
def paths(target: Target, draw: Random, count: int) -> Iterator[Outcome]:
    """Traversal, encoded separators, NUL, overlong UTF-8, double encoding: no file, no page without its guard."""
    places = (
        "/v1/requests/", "/v1/models/", "/v1/files/", "/v1/batches/", "/v1/responses/", "/docs/", "/admin/static/v/",
        "/admin/static/", "/admin/", "/admin/api/", "/v1/admin/", "/admin/api/requests/", "/", "/v1/",
    )  # fmt: skip
    steps = (
        "../", "..%2f", "%2e%2e/", "%2e%2e%2f", "..%5c", "..\\", "%252e%252e%252f", "..%c0%af", "..%e0%80%af", "%00",
        "..;/", "./", "//", "%2f%2f", ".%00./", "..%ef%bc%8f", "%c0%ae%c0%ae/", "..%u2215", "%ff", "%", "%zz", "%0d%0a",
        "\x7f", "%09", "%20", "😀", "~", "file:///", "http://127.0.0.1/", "x" * 3000 + "/",
    )  # fmt: skip
    ends = (
        "etc/passwd", "etc%2fpasswd", "proc/self/environ", "aio.db", "log", "catalog.toml", "gateway/http.py", "keys",
        "admin/api/keys", "v1/admin/knobs/core", "admin/api/keys%00", "admin/api/keys/", "ADMIN/API/KEYS",
        "admin%2fapi%2fkeys", "",
        "admin/keys", "metrics", ".git/config", "site.py", "style.css/../../../site.py",
    )  # fmt: skip
    for number in range(count):
        path = draw.choice(places) + "".join(draw.choices(steps, k=draw.randint(0, 6))) + draw.choice(ends)
        path += draw.choice(["", "?format=csv", "?../../etc/passwd", "#x", ";x=y", "%3f"])
        answer = target.ask(draw.choice(["GET", "GET", "GET", "DELETE", "POST"]), path.replace(" ", "%20"))
        body = answer.json
        administers = answer.status == 200 and isinstance(body, dict) and bool({"rows", "knobs"} & body.keys())
        yield outcome_of(answer, f"path #{number}: {path[:200]}", "administration without a key" if administers else "")


@attack_class("headers", 1200, "keyed", "open")
def headers(target: Target, draw: Random, count: int) -> Iterator[Outcome]:
    """Headers that are repeated, endless, not Latin-1, and that name hosts, proxies, sizes and times."""
    values = (
        b"", b" ", b"\xff\xfe", b"\x80", "ü€😀".encode(), b"a" * 9000, b"0", b"-1", b"1e400", b"NaN", b"9" * 400, b"[",
        b"[::1",
        b"[]", b"]", b"]:80", b":", b"::", b":99999", b"a:b:c", b"@", b"a@b", b"%00", b"%", b"\\", b"/", b"//", b"?",
        b"#", b"null", b"*",
        b"127.0.0.1", b"[::1]:0", b"http://[", b"http://", b"javascript:alert(1)", b"a,b,c", b'"', b'"\\', b";",
        b"=;=", b"{}", b"[]",
        b"\t", b"a\tb", b"xn--\xff", b"bytes=0-,0-,0-", b"../..", b"text/html; charset=\xff", b"multipart/form-data",
        b"application/json; charset=utf-7", b"00-" + b"f" * 32 + b"-" + b"f" * 16 + b"-zz", b"gzip", b"100-continue",
        b"close, keep-alive",
        b"websocket", b"h2c", b"Bearer", b"Bearer ", b"Basic YTpi", b"Bearer \xff", b"bearer x y", b"aio_session=x",
        b"a" * 200 + b"=b",
    )  # fmt: skip
    names = (
        b"Host", b"Origin", b"Referer", b"Sec-Fetch-Site", b"Authorization", b"X-Api-Key", b"Cookie", b"Content-Type",
        b"Content-Encoding", b"Content-Length", b"Expect", b"Accept", b"Accept-Encoding", b"Accept-Language", b"Range",
        b"If-None-Match", b"If-Modified-Since", b"X-Forwarded-For", b"X-Forwarded-Proto", b"X-Forwarded-Host",
        b"X-Forwarded-Port", b"X-Forwarded-Prefix",
        b"Forwarded", b"X-Real-IP", b"X-Original-URL", b"X-Rewrite-URL", b"Via", b"Traceparent", b"Tracestate",
        b"Baggage", b"Upgrade", b"Connection",
        b"X-Request-Id", b"X-Aio-Quality", b"X-Aio-Cache", b"X-Aio-Conversation", b"X-Aio-Slo", b"X-Aio-Tier",
        b"X-Aio-Max-Cost",
        b"X-Aio-Metadata", b"X-Aio-Store", b"Openai-Organization", b"Anthropic-Version", b"Anthropic-Beta",
        b"X-Stainless-Timeout",
        b"Sec-Websocket-Version", b"Sec-Websocket-Key", b"Sec-Websocket-Protocol", b"Sec-Websocket-Extensions",
        b"Date", b"TE", b"Trailer",
        b"X-Csrf-Token", b"Idempotency-Key",
    )  # fmt: skip
    for number in range(count):
        path = draw.choice([CHAT, CHAT, *ROUTES])
        reads = path != CHAT and draw.random() < 0.7
        lines = [(draw.choice(names), draw.choice(values)) for _ in range(draw.randint(1, 4))]
        lines = [line for line in lines for _ in range(draw.choice([1, 1, 1, 2]))]
        given = {name.lower() for name, _ in lines}
        if b"host" not in given:
            lines.append((b"Host", f"{target.host}:{target.port}".encode()))
        if b"authorization" not in given and target.caller and draw.random() < 0.7:
            lines.append((b"Authorization", b"Bearer " + target.caller.encode()))
        head = f"{'GET' if reads else 'POST'} {path} HTTP/1.1\r\n".encode() + b"".join(
            b"%b: %b\r\n" % line for line in lines
        )
        if not reads and b"content-length" not in given:
            head += b"Content-Length: %d\r\n" % len(BODY)
        answer = target.client.raw(head + b"\r\n" + (b"" if reads else BODY), most=1)[0]
        administers = answer.status < 300 and answer.status > 0 and path.startswith(("/admin/api", "/v1/admin"))
        yield outcome_of(answer, f"{path} {lines!r} #{number}", "administration without a key" if administers else "")
