"""Connections that are held: WebSockets with hostile frames, streams that are not read, callers who leave."""

import json
import re
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from random import Random

from tests.attacks.echo_upstream import PAUSE
from tests.attacks.exchange import Client
from tests.attacks.families.framing import BODY, outcome_of
from tests.attacks.targets import CHAT, CONNECTIONS, HELLO, Target
from tests.fuzz.hostile_json import hostile
from tests.fuzz.hostile_values import RAW
from tests.hostile.target import Outcome, attack_class

WS = "/v1/chat/completions/ws"
LONG = [{"role": "user", "content": f"{PAUSE} for a while"}]
# Seconds until the slots of callers who left are free again: beyond AIO_STALLED_READER_SECONDS.
PATIENCE = 30.0
# In which a wrong first message is answered.
TOLD_SECONDS = 3.0
SHORT = 12_000


def frame(
    draw: Random, opcode: int, payload: bytes, *, final: bool = True, masked: bool = True, reserved: int = 0
) -> bytes:
    """A client's frame."""
    head = bytes([final << 7 | reserved << 4 | opcode])
    mark = 0x80 if masked else 0
    if len(payload) < 126:
        head += bytes([mark | len(payload)])
    elif len(payload) < 65_536:
        head += bytes([mark | 126]) + len(payload).to_bytes(2, "big")
    else:
        head += bytes([mark | 127]) + len(payload).to_bytes(8, "big")
    return head + (bytes(4) if masked else b"") + payload


def upgrade(target: Target, *, key: str | None, more: bytes = b"") -> bytes:
    """The head of a handshake."""
    lines = f"GET {WS} HTTP/1.1\r\nHost: {target.host}:{target.port}\r\n".encode()
    lines += b"Upgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\n"
    lines += b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n" + more
    return lines + (b"" if key is None else b"Authorization: Bearer %b\r\n" % key.encode()) + b"\r\n"


@attack_class("WebSocket frames", 900, "keyed", "open")
def web_sockets(target: Target, draw: Random, count: int) -> Iterator[Outcome]:
    """Frames that are reserved, unmasked, endless, fragmented, no UTF-8; messages that are no chats; odd first keys."""
    chat = {"type": "chat", "request": "a", "model": "tier-1", "messages": HELLO, "max_tokens": 2}
    for number in range(count):
        keyed = draw.random() < 0.7
        kind = draw.randrange(12)
        more = draw.choice(
            [
                b"",
                b"",
                b"Sec-WebSocket-Protocol: x\r\n",
                b"Sec-WebSocket-Extensions: permessage-deflate\r\n",
                b"Sec-WebSocket-Version: 12\r\n",
            ]
        )
        pieces = [upgrade(target, key=target.caller if keyed else None, more=more)]
        if kind == 0:
            pieces.append(frame(draw, draw.choice([3, 4, 7, 11, 15]), b"x"))
        elif kind == 1:
            pieces.append(frame(draw, 1, b"{}", masked=False))
        elif kind == 2:
            pieces.append(frame(draw, 1, b"{}", reserved=draw.randint(1, 7)))
        elif kind == 3:
            pieces.append(frame(draw, 1, draw.choice([b"\xff\xfe", b"\xed\xa0\x80", b"\xc0\xaf", b"{\xf0\x9f"])))
        elif kind == 4:
            pieces.append(frame(draw, 2, draw.choice([b"{}", b"\xff" * 200, b""])))
        elif kind == 5:
            pieces.append(
                bytes([0x81, 0xFF])
                + draw.choice([2**63, 2**63 - 1, 2**40, 2**31]).to_bytes(8, "big")
                + bytes(4)
                + b"x" * 1000
            )
        elif kind == 6:
            pieces.append(
                frame(draw, 1, b"", final=False) + frame(draw, 0, b"ab", final=False) * 2000 + frame(draw, 1, b"x")
            )
        elif kind == 7:
            pieces.append(
                frame(
                    draw,
                    draw.choice([8, 9, 10]),
                    draw.choice([b"", b"\x03", b"\x03\xe8\xff", b"\xff\xff", b"x" * 125]),
                    final=draw.random() < 0.8,
                )
            )
        elif kind == 8:
            pieces.append(frame(draw, 9, b"x" * 125) * 500)
        elif kind == 9:  # a first message that should be a key
            key = draw.choice(
                [
                    '"\\ud800"',
                    '"\\u0000"',
                    '"a\\r\\nx: y"',
                    "null",
                    "[]",
                    '""',
                    '"' + "k" * 9000 + '"',
                    '"é"',
                    '"sk-aio-x"',
                ]
            )
            pieces.append(frame(draw, 1, b'{"type":"authorize","api_key":' + key.encode() + b"}"))
        else:
            messages = [
                hostile(
                    draw.choice([chat, {"type": "cancel", "request": "a"}, {"type": "authorize", "api_key": "x"}]), draw
                )
                for _ in range(draw.randint(1, 12))
            ]
            pieces.append(b"".join(frame(draw, 1, message[:200_000]) for message in messages))
        with target.client.connect() as connection:
            heard = _shaken(connection, pieces[0])
            connection.settimeout(0.15)
            with suppress(ConnectionError):
                for piece in pieces[1:]:
                    connection.sendall(piece)
                connection.sendall(frame(draw, 8, b"\x03\xe8"))
            heard += _heard(connection, heard)
        found = re.search(rb"HTTP/1.1 (\d{3})", heard)
        status = int(found[1]) if found else 0
        label = f"frames {kind} #{number}: {pieces[-1][:80]!r}"
        # 1011: the server failed.
        failed = b"\x88\x02\x03\xf3" in heard or b"\x03\xf3" in heard[-30:] or b'"type":"server_error"' in heard
        chatted = not keyed and target.caller is not None and b"chat.completion.chunk" in heard
        yield Outcome(label, 500 if failed else status, bypass="a chat without a key" if chatted else "")


@attack_class("first messages of WebSockets", 400, "keyed")
def first_messages(target: Target, draw: Random, count: int) -> Iterator[Outcome]:
    """Keys, types and whole messages of any type in the place of the key: an error answers each, none gets in."""
    chat = json.dumps({"type": "chat", "request": "a", "model": "tier-1", "messages": HELLO, "max_tokens": 2}).encode()
    order = {"type": "authorize", "api_key": "sk-aio-x", "request": "a", "messages": HELLO}
    for number in range(count):
        if draw.random() < 0.5:
            raw = ", ".join(f'"{name}": {draw.choice(RAW)}' for name in draw.sample(list(order), draw.randint(1, 3)))
            message = b"{%b}" % raw.encode("utf-8", "surrogatepass")
        else:
            message = hostile(dict(draw.sample(list(order.items()), draw.randint(1, 4))), draw)
        # Of a longer one the rest is not read before a key has come, for which the gateway waits.
        message = message[:SHORT]
        pieces = [frame(draw, 1, message)]
        if len(message) > 2 and draw.random() < 0.2:
            at = draw.randrange(1, len(message))
            pieces = [frame(draw, 1, message[:at], final=False), frame(draw, 0, message[at:])]
        with target.client.connect() as connection:
            connection.settimeout(TOLD_SECONDS)
            heard = _shaken(connection, upgrade(target, key=None))
            with suppress(ConnectionError):
                connection.sendall(b"".join((*pieces, frame(draw, 1, chat))))
            heard += _heard(connection, heard)
        is_told = b'"error"' in heard or re.search(rb"\r\n\r\n.*\x88[\x02-\x7d]\x03[\xe8-\xf1]", heard, re.S)
        bypass = "" if is_told else f"the connection ended without a word: {heard[-60:]!r}"
        if b"chat.completion.chunk" in heard:
            bypass = "a chat without a key"
        failed = b"\x03\xf3" in heard[-30:] or b'"type":"server_error"' in heard
        yield Outcome(f"#{number}: {message[:100]!r}", 500 if failed else 101, bypass=bypass)


def _shaken(connection: socket.socket, head: bytes) -> bytes:
    """The answer to a handshake's head: what a client sends before it is not read (RFC 6455, section 4.1)."""
    heard = b""
    with suppress(ConnectionError):
        connection.sendall(head)
        while b"\r\n\r\n" not in heard and (piece := connection.recv(65_536)):
            heard += piece
    return heard


def _heard(connection: socket.socket, before: bytes) -> bytes:
    """What the server sends after `before` until it closes; a close frame in answer to ours ends it at the latest."""
    heard = before
    with suppress(OSError):
        # The server's close frame, or more than a chat is.
        while not re.search(rb"\r\n\r\n.*\x88", heard, re.S) and len(heard) < 4_000_000:
            if not (piece := connection.recv(65_536)):
                break
            heard += piece
    return heard[len(before) :]


def _streaming(target: Target, key: str | None, content: str) -> bytes:
    body = json.dumps(
        {"model": "tier-1", "stream": True, "max_tokens": 500, "messages": [{"role": "user", "content": content}]}
    ).encode()
    lines = f"POST {CHAT} HTTP/1.1\r\nHost: {target.host}:{target.port}\r\nContent-Type: application/json\r\n".encode()
    lines += b"" if key is None else b"Authorization: Bearer %b\r\n" % key.encode()
    return lines + b"Content-Length: %d\r\n\r\n" % len(body) + body


@attack_class("streams that are not read", 400, "keyed", "shared")
def slow_readers(target: Target, draw: Random, count: int) -> Iterator[Outcome]:
    """Many streams held open and unread, with small windows: others are served, and all slots are free again."""
    key = target.keys["narrow"]
    done = 0
    while done < count:
        with ExitStack() as stack:
            crowd = min(draw.randint(60, 120), count - done)
            for number in range(crowd):
                connection = stack.enter_context(target.client.connect(receive_bytes=2048))
                connection.sendall(_streaming(target, target.caller if number % 10 else key, f"{PAUSE} #{number}"))
                done += 1
                if number % 20 == 0:
                    answer = target.ask("POST", CHAT, BODY)
                    yield outcome_of(
                        answer,
                        f"a chat beside {number} unread streams",
                        "" if answer.status == 200 else "others are not served",
                    )
                else:
                    yield Outcome(f"unread stream #{number}", 200)
            time.sleep(draw.choice([0.0, 0.5, 2.5]))
        yield _slots_are_free(target, key)


@attack_class("callers who leave", 700, "keyed", "open", "laptop", "shared")
def leavers(target: Target, draw: Random, count: int) -> Iterator[Outcome]:
    """Connections that are closed or reset in the head, in the body, before and within the answer."""
    request = _streaming(target, target.caller, f"{PAUSE} #")
    for number in range(count):
        with target.client.connect() as connection:
            cut = draw.choice([draw.randrange(len(request)), len(request), len(request), len(request)])
            if draw.random() < 0.5:
                # A reset instead of an end.
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\x00\x00\x00\x00\x00\x00\x00")
            connection.sendall(request[:cut])
            status = 0
            if cut == len(request) and draw.random() < 0.5:
                connection.settimeout(30)
                first = connection.recv(draw.choice([1, 100, 3000]))
                status = 200 if first else 0
            if draw.random() < 0.2:
                with suppress(OSError):
                    connection.shutdown(socket.SHUT_WR)
        yield Outcome(f"left after {cut} of {len(request)} bytes #{number}", status)
    if "narrow" in target.keys:
        yield _slots_are_free(target, target.keys["narrow"])


def _slots_are_free(target: Target, key: str) -> Outcome:
    """Whether a key of four concurrent requests is served again after its streams were abandoned."""
    until = time.monotonic() + PATIENCE
    while True:
        answer = target.ask("POST", CHAT, BODY, key=key)
        if answer.status == 200 or time.monotonic() > until:
            break
        time.sleep(0.1)
    return outcome_of(answer, "a chat after the streams were left", "" if answer.status == 200 else "slots are lost")


@attack_class("connections", 900, "keyed", "open")
def connections(target: Target, draw: Random, count: int) -> Iterator[Outcome]:
    """More connections than the gateway takes: idle, half sent, byte by byte; then everything is as before."""
    done = 0
    while done < count:
        crowd = min(CONNECTIONS + 50, count - done)
        with ExitStack() as stack:
            held = []
            for number in range(crowd):
                connection = stack.enter_context(target.client.connect())
                held.append(connection)
                with suppress(ConnectionError):
                    connection.sendall(
                        draw.choice(
                            [
                                b"",
                                b"G",
                                b"GET / HT",
                                b"POST /v1/files HTTP/1.1\r\nHost: x\r\nContent-Length: 99999\r\n\r\n",
                            ]
                        )
                    )
                done += 1
                yield Outcome(f"held connection #{number}", 0)
            time.sleep(0.3)
        until = time.monotonic() + PATIENCE
        answer = Client(target.host, target.port).ask("GET", "/health/live")
        while answer.status != 200 and time.monotonic() < until:
            time.sleep(0.1)
            answer = Client(target.host, target.port).ask("GET", "/health/live")
        yield outcome_of(
            answer, "liveness after the crowd left", "" if answer.status == 200 else "the crowd's connections are kept"
        )
