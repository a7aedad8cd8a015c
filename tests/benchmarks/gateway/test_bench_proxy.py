"""The benchmark of proxying asks what it says, and counts what was not answered."""

import asyncio
from collections.abc import Iterator

import pytest
from click.testing import CliRunner

from benchmarks.__main__ import main
from benchmarks.gateway.proxy import bench_proxy, require_answer
from benchmarks.gateway.target import Target, TargetError
from benchmarks.gateway.upstream import running_upstream
from tests.ports import held_port
from tests.support.upstream import Call, LoopbackServer


async def test_every_load_has_a_row_for_every_target_and_failures_are_counted() -> None:
    async with running_upstream() as url:
        here = Target("here", url.removesuffix("/v1"), "mock")
        lost = Target("lost", f"{here.url}", "mock", key="k", repeats=True)
        rows = [row async for row in bench_proxy([here, lost], concurrency=[1, 4], rate=100.0, seconds=0.05, rounds=1)]
    assert [(row.target, row.stream, row.loop, row.offered) for row in rows] == [
        (name, stream, loop, offered)
        for stream, loop, offered in (
            (False, "closed", 1), (False, "closed", 4), (True, "closed", 1), (True, "closed", 4),
            (False, "poisson", 100),
        )
        for name in ("here", "lost")
    ]  # fmt: skip
    assert all(row.ok > 0 and row.errors == 0 and 0 < row.p50_ms <= row.p99_ms for row in rows)


async def test_a_target_that_is_not_there_is_an_error() -> None:
    with pytest.raises(OSError, match="Connect"):
        async for _ in bench_proxy(
            [Target("gone", "http://127.0.0.1:1", "mock")], concurrency=[1], rate=0, seconds=0.01, rounds=1
        ):
            pass


@pytest.fixture
def closed_port() -> Iterator[int]:
    with held_port() as held:
        yield held.getsockname()[1]


@pytest.mark.parametrize("option", ["--upstream", "--peer"])
def test_the_command_ends_at_once_without_a_listener_and_names_the_option_and_its_url(
    option: str, closed_port: int
) -> None:
    url = f"http://127.0.0.1:{closed_port}/v1"

    said = CliRunner().invoke(main, ["proxy", option, url])

    assert said.exit_code == 1
    assert said.output.startswith(f"Error: {option} {url}: ")


async def test_a_target_that_stays_silent_is_given_up() -> None:
    async def silent(call: Call) -> None:
        await asyncio.Event().wait()

    async with LoopbackServer(silent) as server:
        with pytest.raises(TargetError, match=r"no answer within 0.05 s"):
            await require_answer(Target("silent", server.base_url.removesuffix("/v1"), "mock"), patience=0.05)


async def test_a_target_that_refuses_is_none() -> None:
    async def refuse(call: Call) -> None:
        await call.reply(404, {"error": {"message": "there is no such model"}})

    async with LoopbackServer(refuse) as server:
        with pytest.raises(TargetError, match="by 'another'"):
            await require_answer(Target("lost", server.base_url.removesuffix("/v1"), "another"))
