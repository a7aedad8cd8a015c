"""`aio worker` processes that answer the chats of an `aio serve` without models: killed, frozen, stopped in mid-answer.

The server says the words of `w0 w1 ...` one after another, and goes on after those that a request brings along.
"""

import asyncio
import signal
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import httpx
import openai
import pytest

from tests.loop_thread import on_a_thread
from tests.polling import until
from tests.support.served import ServedProcess, served, started
from tests.support.upstream import Call, LoopbackServer

pytestmark = pytest.mark.processes
WORDS = 60
TEXT = " ".join(f"w{n}" for n in range(WORDS))
CHATS = 6
CATALOG = """
[[tiers]]
number = {number}
name = "tier-{number}"
price = {{ input_usd_per_million = {number}.0, output_usd_per_million = {number}.0 }}
objective = {{ ttft_ms = 1000, itl_ms = 100 }}
expected_answer_tokens = 50
mean_latency_ms = 1000
max_tokens = 512

[tiers.remote]
kind = "vllm"
base_url = "{url}"
model = "m"
max_context = 4096
"""


class Server:
    """Says a word every few milliseconds. `asked`: the requests by their chat's name."""

    def __init__(self) -> None:
        self.asked: Counter[str] = Counter()
        self.begun = threading.Semaphore(0)

    async def answer(self, call: Call) -> None:
        first, last = call.body["messages"][0], call.body["messages"][-1]
        self.asked[first["content"]] += 1
        said = last["content"] if last["role"] == "assistant" else ""
        assert TEXT.startswith(said)
        words = TEXT[len(said) :]
        usage = {"prompt_tokens": 9, "completion_tokens": len(words.split())}
        if not call.body.get("stream"):
            self.begun.release()
            await asyncio.sleep(0.5)
            await call.whole(words, usage)
            return
        await call.begin()
        for place, piece in enumerate(words.replace(" ", "| ").split("|")):
            await call.chunk(piece)
            if place == 5:
                self.begun.release()
            await asyncio.sleep(0.02)
        await call.end(usage)


class Site:
    """A gateway without models, and workers; each has a data folder of its own: they share Redis alone."""

    def __init__(self, stack: ExitStack, folder: Path, url: str, redis_url: str) -> None:
        self._stack, self._folder = stack, folder
        self._catalog = folder / "catalog.toml"
        self._catalog.write_text(
            'name = "two"\n' + "".join(CATALOG.format(number=number, url=url) for number in (1, 2))
        )
        self._environment = {
            "AIO_MONITOR": "false",
            "AIO_CHAT_QUEUE": "put",
            "AIO_CHAT_QUEUE_LEASE_SECONDS": "1",
            "AIO_REDIS_URL": redis_url,
        }
        self._workers = 0
        self.gateway: ServedProcess

    def serve(self) -> None:
        running = served(
            self._folder / "gateway", self._folder / "cache", "--catalog", str(self._catalog),
            environment=self._environment,
        )  # fmt: skip
        self.gateway = self._stack.enter_context(running)

    def worker(self) -> tuple["subprocess.Popen[str]", str]:
        """A new worker that answers, and the URL of its metrics."""
        self._workers += 1
        data = self._folder / f"worker-{self._workers}"
        running = started(
            data, self._folder / "cache", "--catalog", str(self._catalog), environment=self._environment, what="worker"
        )
        process = self._stack.enter_context(running)
        assert process.stdout is not None
        for line in process.stdout:
            if "Probes and metrics" in line:
                return process, line.split()[-1]
        raise AssertionError((data / "log").read_text())

    def spare(self) -> tuple["subprocess.Popen[str]", str]:
        """A worker that stands still, and takes chats from SIGCONT on. One that started only then might be too late
        on a busy machine: chats whose tier no worker has wait for six leases."""
        process, metrics = self.worker()
        process.send_signal(signal.SIGSTOP)
        return process, metrics

    @property
    def _client(self) -> openai.OpenAI:
        """One that waits no longer than the tests do for an answer that does not come."""
        return self.gateway.client.with_options(timeout=60, max_retries=0)

    def stream(self, name: str) -> str:
        """The text of a streamed chat."""
        chunks = self._client.chat.completions.create(
            model="tier-1", messages=[{"role": "user", "content": name}], stream=True
        )
        return "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)

    def whole(self, name: str) -> str:
        answer = self._client.chat.completions.create(model="tier-1", messages=[{"role": "user", "content": name}])
        return answer.choices[0].message.content or ""

    def is_empty(self) -> bool:
        """Whether the queue holds nothing any more, as the gateway sees it."""
        text = httpx.get(f"{self.gateway.url}/metrics").text
        figures = [line for line in text.splitlines() if line.startswith("aio_chat_queue_") and "tier=" in line]
        return bool(figures) and all(line.endswith(" 0.0") for line in figures)


@pytest.fixture
def server() -> Server:
    return Server()


@pytest.fixture
def site(tmp_path: Path, redis_url: str, server: Server) -> Iterator[Site]:
    with ExitStack() as stack:
        loopback, _ = stack.enter_context(on_a_thread(LoopbackServer(server.answer)))
        made = Site(stack, tmp_path, loopback.base_url, redis_url)
        yield made


def redelivered(metrics: str) -> float:
    text = httpx.get(f"{metrics}/metrics").text
    return sum(float(line.split()[-1]) for line in text.splitlines() if line.startswith("aio_chat_queue_redelivered_t"))


def begun(server: Server, chats: int) -> None:
    for _ in range(chats):
        assert server.begun.acquire(timeout=60)


def test_streams_of_killed_workers_go_on_without_a_lost_or_repeated_word(site: Site, server: Server) -> None:
    victims = [site.worker()[0], site.worker()[0]]
    spare, _ = site.spare()
    site.serve()
    names = [f"chat {n}" for n in range(CHATS)]
    with ThreadPoolExecutor(CHATS) as pool:
        answers = [pool.submit(site.stream, name) for name in names]
        begun(server, CHATS)
        for victim in victims:
            victim.send_signal(signal.SIGKILL)
            victim.wait()
        spare.send_signal(signal.SIGCONT)
        assert [answer.result(60) for answer in answers] == [TEXT] * CHATS
    assert all(server.asked[name] > 1 for name in names)
    until(site.is_empty)


def test_whole_answers_of_a_killed_worker_start_again_and_each_is_given_once(site: Site, server: Server) -> None:
    victim, _ = site.worker()
    spare, metrics = site.spare()
    site.serve()
    with ThreadPoolExecutor(CHATS) as pool:
        answers = [pool.submit(site.whole, f"chat {n}") for n in range(CHATS)]
        begun(server, CHATS)
        victim.send_signal(signal.SIGKILL)
        victim.wait()
        spare.send_signal(signal.SIGCONT)
        assert [answer.result(60) for answer in answers] == [TEXT] * CHATS
    assert redelivered(metrics) == CHATS
    assert server.asked == Counter({f"chat {n}": 2 for n in range(CHATS)})
    until(site.is_empty)


def test_a_worker_that_is_frozen_beyond_its_lease_adds_nothing_when_it_wakes(site: Site, server: Server) -> None:
    frozen, _ = site.worker()
    spare, _ = site.spare()
    site.serve()
    with ThreadPoolExecutor(CHATS) as pool:
        answers = [pool.submit(site.whole, f"chat {n}") for n in range(CHATS)]
        begun(server, CHATS)
        frozen.send_signal(signal.SIGSTOP)
        spare.send_signal(signal.SIGCONT)
        assert [answer.result(60) for answer in answers] == [TEXT] * CHATS
        frozen.send_signal(signal.SIGCONT)
        assert site.whole("after") == TEXT
    until(site.is_empty)


def test_a_worker_that_is_stopped_ends_its_chats_and_takes_no_more(site: Site, server: Server) -> None:
    worker, _ = site.worker()
    site.serve()
    with ThreadPoolExecutor(CHATS) as pool:
        answers = [pool.submit(site.stream, f"chat {n}") for n in range(CHATS)]
        begun(server, CHATS)
        worker.send_signal(signal.SIGTERM)
        assert [answer.result(60) for answer in answers] == [TEXT] * CHATS
    assert worker.wait(60) == 0
    assert server.asked == Counter({f"chat {n}": 1 for n in range(CHATS)})
    with pytest.raises(openai.InternalServerError):
        until(lambda: time.sleep(0.1) or site.whole("nobody answers") is None)


def test_a_killed_gateways_chats_are_dropped(site: Site, server: Server) -> None:
    site.worker()
    site.serve()
    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(site.stream, "left")
        begun(server, 1)
        site.gateway.kill()
        with pytest.raises((openai.APIError, httpx.TransportError)):
            answer.result(60)
    site.serve()
    assert site.whole("another") == TEXT
    until(site.is_empty)
    assert server.asked["left"] == 1
