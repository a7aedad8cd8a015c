"""`aio worker` with a gateway that answers no lines itself: killed, frozen, stopped, restarted; on both queues."""

import io
import json
import signal
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import httpx
import openai
import pytest

from tests.gateway.batches.batching import ENDED, request_line
from tests.polling import until
from tests.support.served import ServedProcess, served, started
from tests.support.upstream import Upstream, write_remote_catalog

pytestmark = pytest.mark.slow
LINES = 40
# Running lines of one worker: all of them are held upstream before a worker is killed.
CONCURRENCY = 3


class Site:
    """A gateway and workers of one data folder."""

    def __init__(self, stack: ExitStack, folder: Path, upstream: Upstream, redis_url: str) -> None:
        self._stack, self._data, self._cache = stack, folder / "data", folder / "cache"
        self._catalog = str(write_remote_catalog(folder / "catalog.toml", upstream.base_url))
        self._environment = {"AIO_MONITOR": "false", "AIO_BATCH_LEASE_SECONDS": "1", "AIO_REDIS_URL": redis_url}
        self.gateway = self.serve(stack)

    def serve(self, stack: ExitStack) -> ServedProcess:
        environment = self._environment | {"AIO_BATCH_CONCURRENCY": "0"}
        process = served(self._data, self._cache, "--catalog", self._catalog, environment=environment)
        return stack.enter_context(process)

    def worker(self) -> tuple["subprocess.Popen[str]", str]:
        """A new worker that answers, and the URL of its metrics."""
        options = ["--catalog", self._catalog, "--concurrency", str(CONCURRENCY)]
        process = self._stack.enter_context(
            started(self._data, self._cache, *options, environment=self._environment, what="worker")
        )
        assert process.stdout is not None
        for line in process.stdout:
            if "AIO answers batches" in line:
                return process, line.split()[-1]
        raise AssertionError((self._data / "log").read_text())


@pytest.fixture(params=["database", "redis"])
def site(request: pytest.FixtureRequest, tmp_path: Path, upstream: Upstream) -> Iterator[Site]:
    redis_url = request.getfixturevalue("redis_url") if request.param == "redis" else ""
    with ExitStack() as stack:
        upstream.hold_again()
        while upstream.held.acquire(blocking=False):
            pass
        yield Site(stack, tmp_path, upstream, redis_url)
        upstream.let_go()


def made(client: openai.OpenAI, **words: str) -> str:
    """Make a batch of lines that start with `hold`, or with their own of `words`."""
    names = [f"r{n}" for n in range(LINES)]
    contents = [f"{words.get(name, 'hold')} {name}" for name in names]
    lines = [
        request_line(name, messages=[{"role": "user", "content": content}])
        for name, content in zip(names, contents, strict=True)
    ]
    file = client.files.create(file=("in.jsonl", io.BytesIO(b"\n".join(lines))), purpose="batch")
    return client.batches.create(input_file_id=file.id, endpoint="/v1/chat/completions", completion_window="24h").id


def answers(client: openai.OpenAI, batch_id: str) -> dict[str, str]:
    """Return the answers by custom id, each once, of the batch once it has ended."""
    until(lambda: client.batches.retrieve(batch_id).status in ENDED)
    batch = client.batches.retrieve(batch_id)
    assert batch.status == "completed"
    assert batch.error_file_id is None
    return output(client, batch.output_file_id)


def output(client: openai.OpenAI, file_id: str | None) -> dict[str, str]:
    assert file_id is not None
    lines = [json.loads(line) for line in client.files.content(file_id).text.splitlines()]
    found = {line["custom_id"]: line["response"]["body"]["choices"][0]["message"]["content"] for line in lines}
    assert len(found) == len(lines)
    return found


EXPECTED = {f"r{n}": f"hold r{n}" for n in range(LINES)}


def held(upstream: Upstream, lines: int) -> None:
    for _ in range(lines):
        assert upstream.held.acquire(timeout=60)


def test_lines_of_a_killed_worker_are_answered_by_another_and_each_once(site: Site, upstream: Upstream) -> None:
    client = site.gateway.client
    victim, _ = site.worker()
    batch_id = made(client)
    held(upstream, CONCURRENCY)
    victim.send_signal(signal.SIGKILL)
    victim.wait()

    _, metrics = site.worker()
    # Lines never taken are held first; then the dead worker's come, once their lease has expired.
    held(upstream, CONCURRENCY)
    upstream.let_go()

    assert answers(client, batch_id) == EXPECTED
    text = httpx.get(f"{metrics}/metrics").text
    assert f"aio_batch_lines_redelivered_total {float(CONCURRENCY)}" in text


def test_a_line_that_kills_two_workers_is_failed_and_the_third_answers_the_rest(site: Site, upstream: Upstream) -> None:
    client = site.gateway.client
    batch_id = made(client, r1="die")
    for neighbours in (CONCURRENCY - 1, 0):
        victim, _ = site.worker()
        held(upstream, neighbours)
        assert upstream.deadly.acquire(timeout=60)
        victim.send_signal(signal.SIGKILL)
        victim.wait()
        upstream.let_go()
    site.worker()

    until(lambda: client.batches.retrieve(batch_id).status in ENDED)
    batch = client.batches.retrieve(batch_id)
    assert output(client, batch.output_file_id) == {name: text for name, text in EXPECTED.items() if name != "r1"}
    assert batch.error_file_id is not None
    (error,) = map(json.loads, client.files.content(batch.error_file_id).text.splitlines())
    assert (error["custom_id"], error["error"]["code"]) == ("r1", "process_died")
    assert not upstream.deadly.acquire(blocking=False)


def test_a_worker_that_is_frozen_beyond_its_lease_makes_no_second_answer(site: Site, upstream: Upstream) -> None:
    client = site.gateway.client
    frozen, _ = site.worker()
    batch_id = made(client)
    held(upstream, CONCURRENCY)
    frozen.send_signal(signal.SIGSTOP)
    site.worker()
    held(upstream, CONCURRENCY)
    upstream.let_go()
    until(lambda: client.batches.retrieve(batch_id).request_counts.completed >= LINES - 1  # type: ignore[union-attr]
          or client.batches.retrieve(batch_id).status in ENDED)  # fmt: skip
    frozen.send_signal(signal.SIGCONT)

    assert answers(client, batch_id) == EXPECTED


def test_two_workers_share_a_batch_and_answer_each_line_once(site: Site, upstream: Upstream) -> None:
    client = site.gateway.client
    site.worker()
    site.worker()
    batch_id = made(client)
    held(upstream, 2 * CONCURRENCY)
    upstream.let_go()
    assert answers(client, batch_id) == EXPECTED
    # No more than once upstream either, as no worker died.
    asked = 2 * CONCURRENCY
    while upstream.held.acquire(blocking=False):
        asked += 1
    assert asked == LINES


def test_sigterm_ends_what_is_under_way_and_begins_nothing(site: Site, upstream: Upstream) -> None:
    client = site.gateway.client
    worker, _ = site.worker()
    batch_id = made(client)
    held(upstream, CONCURRENCY)
    worker.send_signal(signal.SIGTERM)
    upstream.let_go()
    worker.wait()
    counts = client.batches.retrieve(batch_id).request_counts
    assert counts is not None
    assert CONCURRENCY <= counts.completed < LINES
    site.worker()
    assert answers(client, batch_id) == EXPECTED


def test_a_restarted_gateway_goes_on_with_what_is_unfinished(site: Site, upstream: Upstream) -> None:
    batch_id = made(site.gateway.client)
    site.gateway.kill()
    with ExitStack() as stack:
        gateway = site.serve(stack)
        site.worker()
        held(upstream, CONCURRENCY)
        upstream.let_go()
        assert answers(gateway.client, batch_id) == EXPECTED
