"""`aio serve --gateway-workers 2`: two processes behave like one, and when one dies, the other goes on."""

import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from gateway.telemetry.scraped import merged_exposition
from tests.polling import until
from tests.support.served import ENDED_SECONDS, Serve, ServedProcess, served, started
from tests.support.upstream import Upstream, write_remote_catalog

pytestmark = pytest.mark.processes

CHAT = "/v1/chat/completions"


@pytest.fixture(scope="module")
def options(upstream: Upstream, tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    catalog = write_remote_catalog(tmp_path_factory.mktemp("catalog") / "catalog.toml", upstream.base_url)
    return ["--gateway-workers", "2", "--catalog", str(catalog)]


@pytest.fixture(scope="module")
def aio(options: list[str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedProcess]:
    # In the environment, as Helm and compose give it: the workers inherit it, and must not supervise others.
    environment = {"AIO_GATEWAY_WORKERS": "2"}
    data, cache = tmp_path_factory.mktemp("data"), tmp_path_factory.mktemp("cache")
    with served(data, cache, *options[2:], environment=environment) as process:
        yield process


def requests_by_worker(aio: ServedProcess) -> dict[str, float]:
    families = text_string_to_metric_families(httpx.get(f"{aio.url}/metrics").text)
    samples = [sample for family in families for sample in family.samples if sample.name == "aio_requests_total"]
    by_worker: dict[str, float] = {}
    for sample in samples:
        by_worker[sample.labels["worker"]] = by_worker.get(sample.labels["worker"], 0) + sample.value
    return by_worker


def workers(aio: ServedProcess) -> set[int]:
    pid = aio.process.pid
    return {int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()}


def held_stream(aio: ServedProcess, upstream: Upstream) -> tuple[threading.Thread, list[str]]:
    """A streamed answer that pauses at the upstream; its pieces, complete once the thread has ended."""
    pieces: list[str] = []

    def read() -> None:
        stream = aio.client.chat.completions.create(
            model="tier-1", messages=[{"role": "user", "content": "hold the line"}], stream=True
        )
        pieces.extend(chunk.choices[0].delta.content or "" for chunk in stream if chunk.choices)

    upstream.hold_again()
    thread = threading.Thread(target=read)
    thread.start()
    assert upstream.held.acquire(timeout=60)
    return thread, pieces


def test_there_are_as_many_workers_as_set_and_each_serves_by_itself(aio: ServedProcess) -> None:
    state = aio.admin.get("/admin/api/system").raise_for_status().json()
    children = [Path(f"/proc/{pid}/task/{pid}/children").read_text() for pid in workers(aio)]
    assert (state["workers"], children) == (2, ["", ""])


def test_one_scrape_counts_the_requests_of_all_workers(aio: ServedProcess) -> None:
    before = sum(requests_by_worker(aio).values())
    for _ in range(32):
        aio.ask().raise_for_status()
    after = requests_by_worker(aio)
    assert set(after) == {"0", "1"}
    assert sum(after.values()) == before + 32


def test_a_record_is_found_at_once_by_whichever_worker_is_asked(aio: ServedProcess) -> None:
    for _ in range(8):
        request_id = aio.ask().headers["x-aio-decision-id"]
        until(lambda: httpx.get(f"{aio.url}/v1/requests/{request_id}").status_code == 200)  # noqa: B023
        statuses = {httpx.get(f"{aio.url}/v1/requests/{request_id}").status_code for _ in range(8)}
        assert statuses == {200}


def test_a_killed_worker_is_restarted_and_no_request_is_refused(aio: ServedProcess) -> None:
    ended = [aio.ask().headers["x-aio-decision-id"] for _ in range(8)]
    until(lambda: all(httpx.get(f"{aio.url}/v1/requests/{i}").status_code == 200 for i in ended))
    before = workers(aio)
    victim = min(before)
    os.kill(victim, signal.SIGKILL)
    # On separate connections: some reach the dead worker's socket, and wait there.
    ended += [aio.ask().headers["x-aio-decision-id"] for _ in range(16)]
    until(lambda: len(workers(aio) - {victim}) == 2)
    until(lambda: all(httpx.get(f"{aio.url}/v1/requests/{i}").status_code == 200 for i in ended))


def test_sigusr2_renews_every_worker_while_streams_go_on(aio: ServedProcess, upstream: Upstream) -> None:
    before = workers(aio)
    thread, pieces = held_stream(aio, upstream)
    aio.process.send_signal(signal.SIGUSR2)
    until(lambda: len(workers(aio) - before) >= 1)
    renewed = workers(aio) - before
    # The program may have changed since `renewed` started: they are replaced as well.
    aio.process.send_signal(signal.SIGUSR2)
    assert aio.ask().status_code == 200
    upstream.let_go()
    thread.join()
    assert "".join(pieces) == "hold the line"
    until(lambda: len(workers(aio)) == 2 and not workers(aio) & (before | renewed))
    assert aio.ask().status_code == 200


def prices(aio: ServedProcess) -> set[float]:
    """Prices of tier 1 as seen over so many connections that every worker is surely among them."""
    cards = [httpx.get(f"{aio.url}/v1/models/tier-1").json() for _ in range(24)]
    return {card["x_aio"][0]["input_usd_per_million"] for card in cards}


def test_sighup_and_the_reload_of_one_worker_reach_all(aio: ServedProcess, options: list[str]) -> None:
    catalog = Path(options[-1])
    (price,) = prices(aio)
    before = workers(aio)
    catalog.write_text(catalog.read_text().replace(f"input_usd_per_million = {price}", "input_usd_per_million = 0.2"))
    aio.process.send_signal(signal.SIGHUP)
    until(lambda: prices(aio) == {0.2})
    catalog.write_text(catalog.read_text().replace("input_usd_per_million = 0.2", f"input_usd_per_million = {price}"))
    aio.admin.post("/v1/admin/reload", json={"reason": "a test"}).raise_for_status()
    until(lambda: prices(aio) == {price})
    assert workers(aio) == before


def test_sigterm_lets_streams_end_and_the_status_says_so(
    options: list[str], upstream: Upstream, tmp_path: Path, served: Serve
) -> None:
    aio = served(*options)
    thread, pieces = held_stream(aio, upstream)
    children = workers(aio)
    aio.process.send_signal(signal.SIGTERM)
    until(lambda: "Shutting down" in (tmp_path / "data" / "log").read_text())
    upstream.let_go()
    thread.join()
    assert "".join(pieces) == "hold the line"
    assert aio.process.wait(ENDED_SECONDS) == 0
    assert not any(Path(f"/proc/{child}").exists() for child in children)


def test_without_their_supervisor_workers_end_too(options: list[str], served: Serve) -> None:
    aio = served(*options)
    children = workers(aio)
    aio.kill()
    until(lambda: not any(_runs(child) for child in children))


def test_what_cannot_start_ends_with_a_reason_and_a_status(options: list[str], tmp_path: Path) -> None:
    catalog = write_remote_catalog(tmp_path / "catalog.toml", "http://127.0.0.1:9/v1")
    catalog.write_text(catalog.read_text().replace('model = "upstream"', 'model = "upstream"\napi_key_env = "NO_SUCH"'))
    with started(tmp_path / "data", tmp_path / "cache", "--port", "0", *options[:2], "--catalog", str(catalog)) as one:
        assert one.wait(ENDED_SECONDS) == 1
    assert " ended with status 1 before it was ready" in (tmp_path / "data" / "log").read_text()


def test_a_taken_port_is_not_shared(aio: ServedProcess, options: list[str], tmp_path: Path) -> None:
    port = aio.url.rsplit(":", 1)[1]
    with started(tmp_path / "data", tmp_path / "cache", "--port", port, *options) as second:
        assert second.wait(ENDED_SECONDS) == 1
    assert (
        f"another program listens on port {port}; choose another port with --port"
        in (tmp_path / "data" / "log").read_text()
    )


def test_merged_metrics_keep_workers_apart_and_families_together() -> None:
    text = b'# HELP a_total Help.\n# TYPE a_total counter\na_total{x="1"} 2.0\n# HELP b B.\n# TYPE b gauge\nb 1.0\n'
    merged = merged_exposition({1: text, 0: text}).decode()
    assert merged == (
        '# HELP a_total Help.\n# TYPE a_total counter\na_total{worker="0",x="1"} 2.0\na_total{worker="1",x="1"} 2.0\n'
        '# HELP b B.\n# TYPE b gauge\nb{worker="0"} 1.0\nb{worker="1"} 1.0\n'
    )


def _runs(pid: int) -> bool:
    """Whether a process exists and is not a zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False
