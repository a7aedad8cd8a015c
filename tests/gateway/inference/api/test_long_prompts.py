"""Bodies of megabytes, whatever their content, are refused for their length while other clients are served."""

import http.client
import json
import random
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import pytest
from websockets.sync.client import connect

from gateway.inference.api.json_bounds import MAX_CONTAINERS
from tests.polling import until
from tests.support.served import Serve, ServedProcess, served
from tests.support.upstream import Upstream, write_remote_catalog

pytestmark = pytest.mark.processes

SHORT, LONG = 390 * 1024, int(3.8 * 2**20)
# Generous: the machine may be busy.
PATIENCE = 2.0
draw = random.Random(5)
RANGES = [(0x80, 0x800), (0x800, 0xD800), (0x10000, 0x30000)]
UNICODE = "".join(chr(draw.randrange(*draw.choice(RANGES))) for _ in range(10_000))
LINE = "".join(draw.choices("abcdefghijklmnopqrstuvwxyz", k=10_000))
# Half a megabyte of white space fits: it has a token per eighty bytes.
MADE_OF = {"words": "a ", "unicode": UNICODE, "line": LINE, "digits": "7", "private": "\U00100000"}
MADE_OF |= {"control": "<|im_start|>", "almost control": "<"}


class Attack(NamedTuple):
    """A request, with the expected status, parameter and code."""

    path: str
    body: Any
    expected: tuple[int, str | None, str | None]


class Liveness(threading.Thread):
    """Asks a gateway repeatedly on one connection whether it is alive, and records the longest answer time."""

    def __init__(self, aio: ServedProcess) -> None:
        super().__init__()
        self._host, port = aio.url.removeprefix("http://").split(":")
        self._port = int(port)
        self._over = threading.Event()
        self.worst, self.answers = 0.0, 0

    def run(self) -> None:
        connection = http.client.HTTPConnection(self._host, self._port, timeout=120)
        while not self._over.wait(0.002):
            began = time.monotonic()
            connection.request("GET", "/health/live")
            answer = connection.getresponse()
            answer.read()
            assert answer.status == 200
            self.worst = max(self.worst, time.monotonic() - began)
            self.answers += 1
        connection.close()

    def __enter__(self) -> "Liveness":
        self.start()
        until(lambda: self.answers > 3)
        self.worst = 0.0
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self.join()


@pytest.fixture(scope="module")
def aio(module_served: Serve) -> ServedProcess:
    return module_served(environment={"AIO_MONITOR": "false"})


def text_of(made_of: str, size: int) -> str:
    piece = MADE_OF[made_of]
    return piece * (size // len(piece.encode()))


def attacks(text: str) -> list[Attack]:
    too_long = "context_length_exceeded"
    user = [{"role": "user", "content": text}]
    embeddings = {"model": "smollm2-embed", "input": text}
    return [
        Attack("/v1/chat/completions", {"model": "auto", "messages": user}, (400, "messages", too_long)),
        Attack("/v1/chat/completions", {"model": "tier-4", "messages": user}, (400, "messages", too_long)),
        Attack("/v1/completions", {"model": "tier-1", "prompt": text}, (400, "prompt", too_long)),
        Attack("/v1/responses", {"model": "auto", "input": text}, (400, "input", too_long)),
        Attack("/v1/route", {"messages": user}, (400, "messages", too_long)),
        Attack("/v1/embeddings", embeddings, (400, "input[0]", too_long)),
    ]


def turns(number: int) -> list[Attack]:
    many = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}] * (number // 2)
    expected = (400, "messages", "array_too_long")
    too_many = "array_too_long" if number > MAX_CONTAINERS else "invalid_value"
    parts = [{"role": "user", "content": [{"type": "text", "text": "a"}] * number}]
    return [
        Attack("/v1/chat/completions", {"model": "auto", "messages": many}, expected),
        Attack("/v1/chat/completions", {"model": "auto", "messages": parts}, expected),
        Attack("/v1/route", {"messages": many}, expected),
        Attack("/tokenize", {"model": "tier-1", "messages": many}, expected),
        Attack("/v1/responses", {"model": "auto", "input": many}, (400, "input", too_many)),
        Attack("/v1/completions", {"model": "tier-1", "prompt": ["a"] * number}, (400, "prompt", "array_too_long")),
    ]


def answered(aio: ServedProcess, attack: Attack) -> tuple[int, str | None, str | None]:
    content = json.dumps(attack.body, ensure_ascii=False).encode()
    headers = {"content-type": "application/json"}
    answer = httpx.post(f"{aio.url}{attack.path}", content=content, headers=headers, timeout=120)
    error = {} if answer.is_success else answer.json()["error"]
    return answer.status_code, error.get("param"), error.get("code")


def attacked(aio: ServedProcess, all_attacks: list[Attack]) -> Liveness:
    """Send four at a time; each gets the expected answer."""
    pid = aio.process.pid
    with Liveness(aio) as liveness, ThreadPoolExecutor(4) as pool:
        for attack, outcome in zip(all_attacks, pool.map(lambda one: answered(aio, one), all_attacks), strict=True):
            assert outcome == attack.expected, attack.path
    assert (aio.process.poll(), aio.process.pid) == (None, pid)
    return liveness


@pytest.mark.parametrize("made_of", MADE_OF)
def test_a_prompt_of_megabytes_is_refused_while_others_are_served(aio: ServedProcess, made_of: str) -> None:
    liveness = attacked(aio, [*attacks(text_of(made_of, SHORT)), *attacks(text_of(made_of, LONG))])
    assert liveness.worst < PATIENCE
    assert liveness.answers > 10


def test_a_hundred_thousand_turns_are_refused_while_others_are_served(aio: ServedProcess) -> None:
    assert attacked(aio, [*turns(42_000), *turns(140_000)]).worst < PATIENCE


def test_a_text_is_tokenised_while_others_are_served(aio: ServedProcess) -> None:
    short, long = {"model": "tier-1", "prompt": text_of("words", SHORT)}, {"model": "tier-1", "prompt": " " * LONG}
    user = [{"role": "user", "content": text_of("line", SHORT)}]
    asked = [long, short | {"return_token_strs": True}, {"model": "tier-1", "messages": user}]
    back = Attack("/v1/detokenize", {"model": "tier-1", "tokens": [7] * 100_000}, (200, None, None))
    liveness = attacked(aio, [back, *(Attack("/v1/tokenize", body, (200, None, None)) for body in asked)])
    assert liveness.worst < PATIENCE


def test_more_tokens_than_one_answer_lists_are_refused(aio: ServedProcess) -> None:
    digits = Attack("/v1/tokenize", {"model": "tier-1", "prompt": "7" * LONG}, (400, "prompt", "too_long"))
    tokens = Attack("/v1/detokenize", {"model": "tier-1", "tokens": [7] * 1_000_001}, (400, "tokens", "too_long"))
    assert attacked(aio, [digits, tokens]).worst < PATIENCE


def test_a_chat_over_a_web_socket_is_refused_for_its_length_too(aio: ServedProcess) -> None:
    url = aio.url.replace("http://", "ws://") + "/v1/chat/completions/ws"
    with Liveness(aio) as liveness, connect(url, max_size=None) as socket:
        for made_of in ("words", "unicode", "almost control"):
            user = [{"role": "user", "content": text_of(made_of, LONG)}]
            socket.send(json.dumps({"model": "auto", "messages": user}, ensure_ascii=False))
            error = json.loads(socket.recv(120))["error"]
            assert (error["param"], error["code"]) == ("messages", "context_length_exceeded")
    assert liveness.worst < PATIENCE


def test_a_text_that_a_redaction_fails_on_delays_no_other(upstream: Upstream, tmp_path: Path) -> None:
    catalog = write_remote_catalog(tmp_path / "catalog.toml", upstream.base_url)
    # The upstream repeats the text, so the answer's limit has room for it.
    larger = catalog.read_text().replace("max_context = 4096", "max_context = 400000")
    catalog.write_text(larger.replace("max_tokens = 512", "max_tokens = 8192"))
    patterns = tmp_path / "patterns"
    patterns.write_text(r"[\w.+-]+@[\w-]+\.[\w.]+" + "\n(a+)+b\n")
    environment = {"AIO_MONITOR": "false", "AIO_REDACTION": str(patterns)}
    with served(tmp_path / "data", tmp_path / "cache", "--catalog", str(catalog), environment=environment) as aio:
        body = {
            "model": "tier-1",
            "messages": [{"role": "user", "content": text_of("line", SHORT)}],
            "max_tokens": 8192,
        }
        exponential = {"model": "tier-1", "messages": [{"role": "user", "content": "a" * 60}], "max_tokens": 1}
        liveness = attacked(
            aio, [Attack("/v1/chat/completions", one, (200, None, None)) for one in (body, exponential)]
        )
        said = httpx.post(
            f"{aio.url}/v1/chat/completions",
            json={"model": "tier-1", "messages": [{"role": "user", "content": "I am ada@example.org today"}]},
        )
        found = f"{aio.url}/v1/requests/{said.headers['x-aio-decision-id']}"
        until(lambda: httpx.get(found).status_code == 200)
        assert httpx.get(found).json()["messages"][0]["content"] == "I am [redacted] today"
    assert liveness.worst < PATIENCE
