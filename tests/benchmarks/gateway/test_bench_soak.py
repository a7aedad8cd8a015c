"""The soak: every kind of request gets the answer that it has to get, others are counted, and growth is seen."""

import json
import os
import threading
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest
import pytest_asyncio
from click.testing import CliRunner

from benchmarks.__main__ import main
from benchmarks.gateway.soak import soak as soak_module
from benchmarks.gateway.soak.figures import Minute, SoakResults, changes_of, look, minute_of, soak_table
from benchmarks.gateway.soak.soak import soaked_catalogue
from benchmarks.gateway.soak.traffic import SHARES, Traffic
from benchmarks.gateway.soak.upstream import soak_upstream
from benchmarks.gateway.upstream import running_upstream
from benchmarks.report.page import parts_of
from gateway.base.settings import Settings
from tests.gateway.walk import BOUNDED
from tests.support.app import running_gateway

HERE = look(os.getpid(), Path(__file__).parent)
KEY = "soak-key-5d41402abc4b2a76b9719d911017c592"


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def asking(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Traffic]:
    """To a gateway with the soak's catalogue, in this process."""
    folder = tmp_path_factory.mktemp("soak")
    catalogue = folder / "catalogue.toml"
    async with soak_upstream() as direct:
        catalogue.write_text(soaked_catalogue(direct))
        settings = Settings(data_dir=str(folder), catalog=str(catalogue), api_keys=f"soak={KEY}", monitor=False)
        async with running_gateway(settings, scripted=False, protocol=BOUNDED) as gateway:
            traffic = Traffic(gateway.url, direct, KEY, seed=3)
            yield traffic
            await traffic.close()


@pytest.fixture
def traffic(asking: Traffic) -> Traffic:
    asking.failures.clear()
    return asking


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("kind", SHARES)
async def test_every_kind_gets_the_answer_that_it_has_to_get(traffic: Traffic, kind: str) -> None:
    before = traffic.requests
    await traffic.send(kind, traffic.next()[1])
    assert traffic.failures == {}
    assert traffic.requests - before == {"upstream alone": 0, "tools": 2, "agent": 2, "feedback": 2}.get(kind, 1)


@pytest.mark.asyncio(loop_scope="module")
async def test_an_agents_conversation_grows_until_its_last_turn(
    traffic: Traffic, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("benchmarks.gateway.soak.traffic.TURNS", 3)
    traffic.sessions.clear()
    lengths = []
    for _ in range(4):
        await traffic.send("agent", traffic.next()[1])
        lengths.append([len(session.messages) for session in traffic.sessions])
    assert traffic.failures == {}
    assert lengths == [[5], [9], [], [5]]


async def test_answers_that_are_not_as_they_have_to_be_are_counted_by_kind() -> None:
    """A server that says the same to everyone, and refuses nothing."""
    fine = {"whole", "upstream alone", "repeated", "stream", "left", "body of 1 MB"}
    async with running_upstream() as url:
        asking = Traffic(url.removesuffix("/v1"), url, KEY, seed=3)
        for kind in SHARES:
            await asking.send(kind, asking.next()[1])
        await asking.close()
    assert {what.partition(":")[0] for what in asking.failures} == SHARES.keys() - fine


def test_what_is_asked_is_a_function_of_the_seed() -> None:
    def drawn(seed: int) -> list[tuple[str, float]]:
        asking = Traffic("http://127.0.0.1:1", "http://127.0.0.1:1/v1", KEY, seed)
        return [(kind, random.random()) for kind, random in (asking.next() for _ in range(50))]

    assert drawn(1) == drawn(1) != drawn(2)


def minute(number: int, **fields: float) -> Minute:
    usual = dict.fromkeys(Minute.__struct_fields__, 10) | {"minute": number}
    return msgspec.convert(usual | fields, Minute)


def test_a_look_sees_memory_files_and_threads_of_a_process(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "file").write_bytes(b"12345")
    before = look(os.getpid(), tmp_path)
    leave = threading.Event()
    waiting = threading.Thread(target=leave.wait)
    waiting.start()
    with (tmp_path / "folder" / "file").open("rb"):
        after = look(os.getpid(), tmp_path)
    leave.set()
    waiting.join()
    assert after.open_files == before.open_files + 1
    assert after.threads == before.threads + 1
    assert before.data == 5
    # The C library's pages, at least, are other processes' too.
    assert 0 < before.proportional < before.resident


def test_growth_is_from_the_first_third_to_the_last_and_its_bound_holds_for_memory_files_and_threads() -> None:
    minutes = [minute(n, resident=100 + n, open_files=20, added_p50_ms=float(n)) for n in range(9)]
    changes = changes_of(minutes)
    assert (changes["resident"].first, changes["resident"].last) == (101, 107)
    assert changes["resident"].growth == pytest.approx(6 / 101)
    results = results_of(changes)
    assert results.not_flat(0.05) == {"resident": changes["resident"].growth}
    assert results.not_flat(0.06) == {}


def test_a_minute_is_the_median_of_its_looks_and_its_answers_take_as_much_longer_as_the_gateway_adds() -> None:
    looks = [msgspec.structs.replace(HERE, resident=size, open_files=size, data=size) for size in (30, 10, 20, 90, 10)]
    seconds = {"whole": [0.002, 0.003, 0.004], "upstream alone": [0.0005, 0.001, 0.002]}
    found = minute_of(looks, 1.0, 50, seconds)
    assert (found.resident, found.resident_most, found.open_files, found.data) == (20, 90, 10, 10)
    assert (found.added_p50_ms, found.added_p99_ms) == (2.0, 2.0)
    alone = minute_of(looks, 1.0, 50, seconds | {"whole": []})
    assert (alone.added_p50_ms, alone.added_p99_ms) == (None, None)


def results_of(changes: object, **failures: int) -> SoakResults:
    here = msgspec.to_builtins(HERE)
    fields = {"minutes": 9, "warm": 0, "requests": 90, "changes": changes, "data_per_request": 1234.5}
    counts = {"kinds": {"whole": 90}, "failures": failures}
    return msgspec.convert(msgspec.to_builtins(fields | counts) | {"before": here, "after": here}, SoakResults)


def test_the_table_has_each_figure_with_its_growth_and_what_failed() -> None:
    shown = soak_table(
        results_of(
            changes_of([minute(n, resident=1e6 * (10 + n)) for n in range(3)]),
            **{"whole: 503": 2, "whole: 401": 1, "left: 503": 4},
        )
    )
    assert "| resident MB                       |        10.0 |       12.0 | +20.0% |" in shown
    assert "90 requests; wrong answers: whole 3, left 4." in shown
    assert "The data folder grew by 1,234 bytes per request." in shown


@pytest.mark.parametrize(
    ("last", "failures", "status", "said"),
    [
        (104, {}, 0, ""),
        (106, {}, 1, "resident grew by 6.0%, which is more than 5%"),
        (100, {"lost": 1}, 1, "wrong answers: lost 1"),
    ],
)
def test_the_command_fails_where_memory_grows_or_an_answer_is_wrong(
    monkeypatch: pytest.MonkeyPatch, last: int, failures: dict[str, int], status: int, said: str
) -> None:
    async def soaked(*_: object) -> SoakResults:
        return results_of(changes_of([minute(1, resident=100), minute(2), minute(3, resident=last)]), **failures)

    monkeypatch.setattr("benchmarks.gateway.soak.soak._run", soaked)
    result = CliRunner().invoke(main, ["soak"])
    assert result.exit_code == status, result.output
    assert said in result.output


def test_a_warm_up_as_long_as_the_soak_is_refused() -> None:
    said = CliRunner().invoke(main, ["soak", "--minutes", "5"])
    assert (said.exit_code, "warm is 5 minutes of 5; it must be shorter" in said.output) == (2, True)


@pytest.mark.processes
def test_the_command_soaks_a_real_server_and_keeps_its_minutes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(soak_module, "QUIET_SECONDS", 0.1)
    out = tmp_path / "soak.jsonl"
    length = ["--minutes", "0.05", "--warm", "0.02", "--every", "1", "--rate", "20", "--most-growth", "1000"]
    said = CliRunner().invoke(main, ["soak", *length, "--out", str(out), "--json"])
    assert said.exit_code == 0, said.output
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    minutes = [msgspec.convert(row["row"], Minute) for row in rows[1:-1]]
    numbers = [one.minute for one in minutes]
    assert numbers == sorted(set(numbers))
    assert numbers[-1] >= 0.05
    results = rows[-1]["results"]
    assert results["failures"] == {}
    assert results["requests"] >= 10
    counted = [one for one in minutes if one.minute > 0.02] or minutes[-1:]
    assert results["changes"] == msgspec.to_builtins(changes_of(counted))
    first, last = counted[0], counted[-1]
    answered = last.requests - first.requests
    # On a busy machine nothing may have been answered between the first look and the last.
    grown_each = (last.data - first.data) / answered if answered else 0.0
    assert results["data_per_request"] == pytest.approx(grown_each, abs=0.1)
    assert results["before"]["resident"] > 50e6
    assert parts_of(tmp_path)["soak"].startswith("| minutes 0.02 to 0.0")
