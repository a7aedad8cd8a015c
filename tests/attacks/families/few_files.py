"""Crowds of clients at a process that may open few files."""

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from random import Random

from tests.attacks.exchange import Answer
from tests.attacks.families.framing import BODY, outcome_of
from tests.attacks.targets import CHAT, Target
from tests.hostile.target import Outcome, attack_class

CROWD = 50
STREAMED = BODY[:-1] + b',"stream":true}'
# Clients that ask for nothing connect, may begin a head or a body, and leave after up to so many seconds.
BEGUN = (b"", b"GET /v1/mod", b"POST /v1/chat/completions HTTP/1.1\r\nHost: a\r\nContent-Length: 999\r\n\r\n{")
MOST_SECONDS = 0.5


@attack_class("crowds at a process of 40 files", 400, "few files")
def crowds(target: Target, draw: Random, count: int) -> Iterator[Outcome]:
    """Chats, streams and pages of fifty clients at once, among others who begin and never ask: who asks is answered."""
    # It would keep a place.
    target.client.close()
    done = 0
    while done < count:
        crowd = [
            draw.choice((CHAT, CHAT, "stream", "/v1/models", "/health/ready", ""))
            for _ in range(min(CROWD, count - done))
        ]
        done += len(crowd)
        with ThreadPoolExecutor(len(crowd)) as pool:
            running = [pool.submit(_asked if one else _begun, target, one, Random(draw.random())) for one in crowd]
            for one, asked in zip(crowd, running, strict=True):
                answer = asked.result()
                bypass = f"answered {answer.status}: {answer.text[:100]}" if one and answer.status != 200 else ""
                yield outcome_of(answer, f"{one or 'a client that never asks'} of {len(crowd)} at once", bypass)


def _asked(target: Target, what: str, draw: Random) -> Answer:
    with target.new_client() as client:
        time.sleep(draw.random() / 10)
        if what.startswith("/v1/chat") or what == "stream":
            body = STREAMED if what == "stream" else BODY
            return client.ask("POST", CHAT, body, headers={"x-aio-cache": "off"})
        return client.ask("GET", what)


def _begun(target: Target, _: str, draw: Random) -> Answer:
    with target.new_client() as client, client.connect() as connection, suppress(OSError):
        connection.sendall(draw.choice(BEGUN))
        time.sleep(draw.random() * MOST_SECONDS)
    return Answer(0)
