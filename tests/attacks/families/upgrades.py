"""Offers of other protocols in HTTP/1.1: they are ignored, and the connection goes on."""

from collections.abc import Iterator
from random import Random

from tests.attacks.exchange import PATIENCE
from tests.attacks.families.framing import BODY, outcome_of
from tests.attacks.targets import CHAT, Target
from tests.hostile.target import Outcome, attack_class

MARKER = b"/smuggled-4712"
# As nghttp2 and Java send them, and as no client would.
SETTINGS = (
    b"AAMAAABkAAQAAP__", b"AAEAAEAAAAIAAAABAAMAAABkAAQBAAAAAAUAAEAA", b"", b"!", b"A" * 9000, b"\xff",
    b"AAMAAABk" * 99,
)  # fmt: skip
# Names of protocols that this gateway does not speak.
PROTOCOLS = (
    b"h2c", b"H2C", b"h2", b"HTTP/2.0", b"TLS/1.2", b"irc/6.9", b"connect-udp", b"h2c, foo/2", b"foo", b"IMAP",
    b"SPDY/3.1",
)  # fmt: skip
# What is no name, or names the protocol that is spoken: any answer will do.
ODD_PROTOCOLS = (
    b"websocket",
    b"WebSocket",
    b"h2c, websocket",
    b"",
    b",",
    b"\xff\xfe",
    b"a" * 9000,
    b'"h2c"',
    b"h2c;q=1",
)
# Frames behind HTTP/2's preface: settings, a window, a header block that ends its stream.
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
FRAMES = (
    b"\0\0\0\x04\0\0\0\0\0", b"\0\0\x04\x08\0\0\0\0\0\0\0\xff\xff", b"\0\0\x03\x01\x05\0\0\0\x01\x82\x86\x84",
    b"\xff\xff\xff\x00\0\0\0\0\x01",
)  # fmt: skip


def _request(target: Target, body: bytes, *lines: bytes) -> bytes:
    """A chat with these lines in its head, and its length unless they give another."""
    head = [b"POST %b HTTP/1.1" % CHAT.encode(), f"Host: {target.host}:{target.port}".encode()]
    head += [b"Content-Type: application/json", *lines]
    if target.caller is not None:
        head.append(b"Authorization: Bearer " + target.caller.encode())
    if not any(line.startswith(b"Transfer-Encoding") for line in lines):
        head.append(b"Content-Length: %d" % len(body))
    return b"\r\n".join(head) + b"\r\n\r\n" + body


@attack_class("offers of other protocols", 500, "keyed", "open")
def upgrades(target: Target, draw: Random, count: int) -> Iterator[Outcome]:
    """Upgrades to h2c and others with whole, chunked and hidden bodies, in one packet or in pieces; HTTP/2 outright."""
    last = _request(target, BODY, b"Connection: close")
    for number in range(count):
        kind = draw.randrange(6)
        if kind == 5:
            sent = PREFACE + b"".join(draw.choices(FRAMES, k=draw.randrange(6)))
            at = draw.randrange(1, len(sent))
            answer = target.client.raw(sent[:at], sent[at:])[0]
            yield outcome_of(
                answer, f"HTTP/2 outright #{number}: {sent!r}", "it was served" if answer.status == 200 else ""
            )
            continue
        is_odd = kind == 4
        name = draw.choice(ODD_PROTOCOLS if is_odd else PROTOCOLS)
        lines = [
            b"Upgrade: " + name,
            draw.choice((b"Connection: Upgrade, HTTP2-Settings", b"Connection: keep-alive, upgrade")),
        ]
        lines += [b"HTTP2-Settings: " + draw.choice(SETTINGS)] * draw.choice((0, 1, 1, 2))
        draw.shuffle(lines)
        body = BODY
        if kind == 1:
            lines.append(b"Transfer-Encoding: chunked")
            at = draw.randrange(1, len(BODY))
            parts = (BODY[:at], BODY[at:])
            body = b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in parts) + b"0\r\n\r\n"
        elif kind == 2:  # a request in the body
            body = BODY[:-1] + b', "user": "' + b"GET %b HTTP/1.1" % MARKER + b'"}' + b"\n" * draw.randrange(9)
        first = _request(target, body, *lines)
        whole = first + last
        at = draw.choice((len(first), len(first) - len(body), draw.randrange(1, len(whole)), len(whole)))
        answers = target.client.raw(whole[:at], whole[at:], silence=PATIENCE)
        # The parser bounds a head, and refuses what is no value of a header.
        is_refused = any(len(line) > 8000 or b"\xff" in line for line in lines)
        served = [answer.status for answer in answers] == [200, 200]
        bypass = "" if served or is_odd or is_refused else f"answered {[answer.status for answer in answers]}"
        if any(MARKER in answer.body and answer.status == 404 for answer in answers):
            bypass = "a request inside a body was answered"
        yield outcome_of(answers[0], f"upgrade {kind} #{number} cut at {at}: {first[:200]!r}", bypass)
