"""What proxying costs: requests per second and latency through a gateway, against its upstream asked directly."""

import asyncio
import itertools
import math
import random
import secrets
import statistics
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import click
import msgspec

from benchmarks.gateway.target import CHAT, MESSAGES, Target, TargetError
from benchmarks.gateway.upstream import proxied_catalogue, running_upstream
from benchmarks.peers.gateways import running_gateways
from benchmarks.report.kept import echo_row
from gateway.cli.options import NEW_FOLDER, json_option, settings_from

MARK = b"000000000000"
TOPICS = "report summary river number compare explain city data price water table winter market letter"
_numbers = itertools.count(1)
_PATIENCE = 10.0
# What a complete answer contains, streamed and whole.
_MARKS = {CHAT: (b"[DONE]", b'"choices"'), MESSAGES: (b"event: message_stop", b'"type":"message"')}


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """Medians over the rounds; milliseconds. `offered`: concurrency of a closed loop, or arrivals per second. The time
    is that of the whole answer."""

    target: str
    stream: bool
    loop: str
    offered: float
    req_s: float
    p50_ms: float
    p99_ms: float
    ok: int
    errors: int


class Asker(asyncio.Protocol):
    """One connection that asks once at a time; `payloads` are requests whose mark is replaced by a number."""

    def __init__(self, payloads: Sequence[bytes], stream: bool, path: str = CHAT) -> None:
        streamed, whole = _MARKS[path]
        self._payloads, self._mark = payloads, streamed if stream else whole
        self._buffer, self._need = b"", -1
        self._answer: asyncio.Future[bool] | None = None
        self._transport: asyncio.Transport | None = None
        self.lost = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See `asyncio.Protocol`."""
        self._transport = transport  # type: ignore[assignment]

    async def ask(self) -> bool:
        """Whether it was answered whole."""
        if self.lost:
            return False
        number = next(_numbers)
        self._buffer, self._need = b"", -1
        self._answer = asyncio.get_running_loop().create_future()
        assert self._transport is not None
        self._transport.write(self._payloads[number % len(self._payloads)].replace(MARK, b"%012d" % number, 1))
        return await self._answer

    def data_received(self, data: bytes) -> None:
        """See `asyncio.Protocol`."""
        self._buffer += data
        if self._need < 0 and (end := self._buffer.find(b"\r\n\r\n")) >= 0:
            head = self._buffer[:end].lower()
            at = head.find(b"\r\ncontent-length:")
            self._need = end + 4 + int(head[at + 17 :].split(b"\r\n", 1)[0]) if at >= 0 else 0
        # A chunked body ends in an empty chunk; no event's own data can look like that.
        whole = len(self._buffer) >= self._need if self._need else self._buffer.endswith(b"\r\n0\r\n\r\n")
        if self._need >= 0 and whole and self._answer is not None and not self._answer.done():
            self._answer.set_result(self._buffer[9:12] == b"200" and self._mark in self._buffer)

    def connection_lost(self, error: Exception | None) -> None:
        """See `asyncio.Protocol`."""
        self.lost = True
        if self._answer is not None and not self._answer.done():
            self._answer.set_result(False)

    def close(self) -> None:
        """Close the connection."""
        if self._transport is not None:
            self._transport.abort()


async def bench_proxy(
    targets: Sequence[Target],
    *,
    concurrency: Sequence[int],
    rate: float,
    seconds: float,
    rounds: int,
) -> AsyncIterator[Row]:
    """A closed loop for each of `concurrency`, whole and streamed, then Poisson arrivals at `rate` per second, whole; 0
    for none. The targets take turns, each round is of `seconds`, and one more before them warms up."""
    loads = [(stream, float(number), False) for stream in (False, True) for number in concurrency]
    if rate:
        loads.append((False, rate, True))
    for stream, offered, is_open in loads:
        rows_by_target: dict[str, list[Row]] = {target.name: [] for target in targets}
        for turn in range(rounds + 1):
            for target in targets:
                row = await one_round(target, stream, offered, is_open, seconds if turn else min(seconds, 1.0))
                if turn:
                    rows_by_target[target.name].append(row)
        for rows in rows_by_target.values():
            yield _median(rows)


@asynccontextmanager
async def proxied_gateway(upstream: str, folder: Path) -> AsyncIterator[Target]:
    """One gateway process with its data in `folder`, whose tiers are all the model of `upstream` (up to /v1): keys,
    limits, routing by `auto`, monitor and ledger are on."""
    from benchmarks.running_server import running_server

    catalogue, key = folder / "catalogue.toml", secrets.token_urlsafe(24)
    catalogue.write_text(proxied_catalogue(upstream), encoding="utf-8")
    settings = settings_from(catalog=str(catalogue), data_dir=str(folder))
    async with running_server(settings, {"AIO_API_KEYS": f"bench={key}"}, "gateway") as server:
        yield Target("aio", server.url, "auto", key)


async def require_answer(target: Target, patience: float = _PATIENCE) -> None:
    """Ask once, for a whole answer. Raises `TargetError` if none comes within `patience` seconds."""
    parts = urlsplit(target.url)
    payloads = payloads_of(target, parts.netloc, stream=False)
    asker = Asker(payloads, stream=False)
    try:
        async with asyncio.timeout(patience):
            host, port = parts.hostname or "127.0.0.1", parts.port or 80
            await asyncio.get_running_loop().create_connection(lambda: asker, host, port)
            answered = await asker.ask()
    except TimeoutError as error:
        raise TargetError(f"no answer within {patience:g} s") from error
    # A port that is no number is a ValueError.
    except (OSError, ValueError) as error:
        raise TargetError(str(error)) from error
    finally:
        asker.close()
    if not answered:
        raise TargetError(f"no status 200 with a choice for a chat completion by {target.model!r}")


async def one_round(target: Target, stream: bool, offered: float, is_open: bool, seconds: float) -> Row:
    """One load for so long: a closed loop of `offered` connections, or (`is_open`) so many arrivals per second."""
    parts = urlsplit(target.url)
    payloads, host = payloads_of(target, parts.netloc, stream), parts.hostname or "127.0.0.1"
    loop = asyncio.get_running_loop()
    askers: list[Asker] = []

    async def connected() -> Asker:
        _, asker = await loop.create_connection(lambda: Asker(payloads, stream, target.path), host, parts.port or 80)
        askers.append(asker)
        return asker

    times: list[float] = []
    errors = 0
    began = time.perf_counter()

    async def timed(asker: Asker, due: float) -> None:
        nonlocal errors
        if await asker.ask():
            times.append(time.perf_counter() - due)
        else:
            errors += 1

    async def closed(asker: Asker) -> None:
        # Once at least, however long the connections took.
        await timed(asker, time.perf_counter())
        while time.perf_counter() - began < seconds:
            await timed(asker, time.perf_counter())

    async def opened(idle: list[Asker], due: float) -> None:
        asker = idle.pop() if idle else await connected()
        # A server closes what was idle for some seconds.
        if asker.lost:
            asker = await connected()
        await timed(asker, due)
        idle.append(asker)

    if is_open:
        await _arrivals(offered, seconds, opened)
    else:
        first = [await connected() for _ in range(int(offered))]
        began = time.perf_counter()
        await asyncio.gather(*map(closed, first))
    wall = time.perf_counter() - began
    for asker in askers:
        asker.close()
    times.sort()
    return Row(
        target=target.name, stream=stream, loop="poisson" if is_open else "closed", offered=offered,
        req_s=round(len(times) / wall, 1), p50_ms=_quantile(times, 0.5), p99_ms=_quantile(times, 0.99),
        ok=len(times), errors=errors,
    )  # fmt: skip


def _quantile(times: list[float], q: float) -> float:
    """Milliseconds, of sorted seconds; NaN of none."""
    return round(times[int(q * (len(times) - 1))] * 1e3, 3) if times else math.nan


async def _arrivals(
    rate: float, seconds: float, begin: Callable[[list[Asker], float], Coroutine[None, None, None]]
) -> None:
    rng = random.Random(7)
    idle: list[Asker] = []
    tasks: set[asyncio.Task[None]] = set()
    began = due = time.perf_counter()
    while due - began < seconds:
        due += rng.expovariate(rate)
        await asyncio.sleep(max(0.0, due - time.perf_counter()))
        tasks.add(asyncio.create_task(begin(idle, due)))
    await asyncio.gather(*tasks)


def payloads_of(target: Target, netloc: str, stream: bool) -> list[bytes]:
    """Requests of 16 to 112 words, no two alike once numbered: neither cache nor memory of decisions helps. Where they
    repeat, there is no number in them."""
    rng = random.Random(11)
    auth = f"Authorization: Bearer {target.key}\r\n" if target.key else ""
    payloads = []
    # Fewer of the long ones, to save memory: the number in its last turn makes each another.
    for index in range(8 if target.history else 256):
        text = " ".join(rng.choices(TOPICS.split(), k=16 + 3 * index % 97))
        content = text if target.repeats else f"{MARK.decode()} {text}"
        turns = [*_earlier_turns(rng, target.history), {"role": "user", "content": content}]
        body = {"model": target.model, "messages": turns, "max_tokens": 16}
        raw = msgspec.json.encode(body | {"stream": stream})
        more = "".join(f"{name}: {value}\r\n" for name, value in target.headers.items())
        common = f"Host: {netloc}\r\n{auth}{more}x-aio-cache: {target.cache}\r\nContent-Type: application/json\r\n"
        head = f"POST {target.path} HTTP/1.1\r\n{common}"
        payloads.append(f"{head}Content-Length: {len(raw)}\r\n\r\n".encode() + raw)
    return payloads


def _earlier_turns(rng: random.Random, words: int) -> list[dict[str, str]]:
    """Turns of 500 words, the caller's and the assistant's in turn, which begin with the caller's."""
    roles = itertools.cycle(("user", "assistant"))
    turns = 2 * math.ceil(words / 1000)
    return [{"role": next(roles), "content": " ".join(rng.choices(TOPICS.split(), k=500))} for _ in range(turns)]


def _median(rows: list[Row]) -> Row:
    middle = {name: statistics.median(getattr(row, name) for row in rows) for name in ("req_s", "p50_ms", "p99_ms")}
    counts = {name: sum(getattr(row, name) for row in rows) for name in ("ok", "errors")}
    return msgspec.structs.replace(rows[0], **middle, **counts)


@click.command()
@click.option("--concurrency", type=click.IntRange(min=1), multiple=True, default=(1, 8))
@click.option("--rate", type=click.FloatRange(min=0), default=200.0, help="Poisson arrivals per s.")
@click.option("--seconds", type=click.FloatRange(min=0.1), default=3.0, help="Of every round.")
@click.option("--rounds", type=click.IntRange(min=1), default=3)
@click.option("--upstream", help="Upstream to proxy to, up to /v1; a peer has to use the same.  [launches one]")
@click.option("--peer", metavar="URL", help="A gateway that runs already, to take turns with.")
@click.option("--peer-model", default="mock")
@click.option(
    "--peers",
    type=NEW_FOLDER,
    help="LiteLLM, Switchyard and Portkey, installed in this folder, take turns, and nginx, if it is installed.",
)
@click.option("--cache", is_flag=True, help="Also what the response cache costs where it misses, and saves.")
@click.option("--messages", is_flag=True, help="Also what /v1/messages costs, in turns with /v1/chat/completions.")
@click.option(
    "--history",
    type=click.IntRange(min=0),
    show_default=False,
    default=0,
    help="Also what so many words of earlier turns cost.",
)
@json_option
def proxy(**arguments: Any) -> None:
    """Requests per second and latency through one gateway process: keys, routing, limits and the ledger on.

    Example: python -m benchmarks proxy --upstream http://127.0.0.1:9001/v1 --peer http://127.0.0.1:4000
    """
    asyncio.run(_run(**arguments))


async def _run(
    upstream: str | None, peer: str | None, peer_model: str, peers: Path | None, cache: bool, messages: bool,
    history: int, as_json: bool, **arguments: Any,
) -> None:  # fmt: skip
    # A gateway without its upstream is never ready, so check first that the upstream answers.
    for option, given_url, model in (("--upstream", upstream, "mock"), ("--peer", peer, peer_model)):
        if given_url is not None:
            try:
                await require_answer(Target(option, given_url.removesuffix("/v1"), model))
            except TargetError as error:
                raise click.ClickException(f"{option} {given_url}: {error}") from error
    with tempfile.TemporaryDirectory(prefix="aio-bench-") as folder:
        async with AsyncExitStack() as stack:
            url = upstream if upstream is not None else await stack.enter_async_context(running_upstream())
            ours = await stack.enter_async_context(proxied_gateway(url, Path(folder)))
            targets = [Target("direct", url.removesuffix("/v1"), "mock"), ours]
            if cache:
                targets.append(Target("aio, miss", ours.url, "auto", ours.key, cache="use"))
                targets.append(Target("aio, hit", ours.url, "auto", ours.key, cache="use", repeats=True))
            if messages:
                targets.append(Target("aio, messages", ours.url, "auto", ours.key, path=MESSAGES))
            if history:
                targets.append(Target("direct, history", targets[0].url, "mock", history=history))
                targets.append(Target("aio, history", ours.url, "auto", ours.key, history=history))
            if peer is not None:
                targets.append(Target("peer", peer, peer_model))
            if peers is not None:
                # Imported here, since the peers' gateways are targets of this module.
                targets += await stack.enter_async_context(running_gateways(peers, url, Path(folder)))
            async for row in bench_proxy(targets, **arguments):
                echo_row(msgspec.structs.asdict(row), as_json)
