"""A question asked again right after a restart gets the kept answer, for the rest of its time (SPEC CA-02)."""

import itertools
from pathlib import Path
from typing import Any

import pytest

from gateway.base.settings import Settings
from gateway.inference import answer_stores
from gateway.inference.answer_stores import AgedAnswer, AnswerFile, MemoryStore, answers_path, delete_answers_beyond
from gateway.inference.response_cache import running_cache
from gateway.runtime.peers import WorkerIdentity
from tests.gateway.inference.test_stores import kept, knobs
from tests.support.app import RunningGateway, StartApp, running_gateway
from tests.support.clock import Clock

BODY = {"model": "tier-1", "messages": [{"role": "user", "content": "Say hello."}], "temperature": 0}


def left_in(folder: Path) -> list[Path]:
    return list(folder.glob("answers.*"))


async def asked(gateway: RunningGateway, **changes: Any) -> tuple[str, str]:
    answer = await gateway.http.post("/v1/chat/completions", json=BODY | changes)
    assert answer.status_code == 200, answer.text
    await gateway.serving.service.idle()
    return answer.headers["x-aio-cache"], answer.json()["choices"][0]["message"]["content"]


@pytest.mark.parametrize(
    ("settings", "again"),
    [
        ({}, "hit"),
        ({"cache_over_restarts": False}, "miss"),
        ({"store_texts": False}, "miss"),
        ({"text_days": 0.0}, "miss"),
        ({"redaction": "patterns"}, "miss"),
    ],
)
async def test_a_question_repeated_after_a_restart_asks_no_model(
    settings: dict[str, Any], again: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, app: StartApp
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "patterns").write_text("[0-9]+\n")
    chosen = Settings(data_dir=str(tmp_path), monitor=False, **settings)
    async with running_gateway(chosen) as gateway:
        assert (await asked(gateway))[0] == "miss"
        _, before = await asked(gateway)
    gateway = await app(chosen)
    result, after = await asked(gateway)
    assert (result, len(gateway.tier(1).requests)) == (again, again == "miss")
    assert after == before
    assert (await asked(gateway, messages=[{"role": "user", "content": "Say goodbye."}]))[0] == "miss"
    # What was read is not there to be read by another process.
    assert left_in(tmp_path) == []


async def test_a_request_without_consent_is_not_kept_over_a_restart(tmp_path: Path) -> None:
    chosen = Settings(data_dir=str(tmp_path), monitor=False)
    async with running_gateway(chosen) as gateway:
        await asked(gateway, store=False)
    assert left_in(tmp_path) == []


def files_of(tmp_path: Path) -> tuple[AnswerFile, Clock]:
    clock = Clock()
    return AnswerFile(tmp_path / "answers.0.msgpack", clock), clock


async def test_answers_keep_their_age_and_their_order(tmp_path: Path, clock: Clock) -> None:
    file, wall = files_of(tmp_path)
    store = MemoryStore(knobs(), clock)
    await store.put(b"old", b"1")
    clock.now += 20
    await store.put(b"new", b"2")
    assert await store.get(b"old") == b"1"
    file.write(store.answers())
    wall.now += 9
    another = MemoryStore(knobs(), later := Clock())
    another.adopt(file.take())
    assert [answer.key for answer in another.answers()] == [b"new", b"old"]
    later.now += 1
    assert await kept(another, b"old", b"new") == [b"new"]
    later.now += 20
    assert await kept(another, b"old", b"new") == []
    assert another.bytes == 0


async def test_what_is_taken_is_bounded_as_what_is_put(tmp_path: Path) -> None:
    store = MemoryStore(knobs(max_entries=2))
    await store.put(b"own", b"here")
    store.adopt([AgedAnswer(b"stale", 30.0, b"x"), AgedAnswer(b"own", 1.0, b"x"), AgedAnswer(b"a", 1.0, b"x")])
    assert [(answer.key, answer.value) for answer in store.answers()] == [(b"own", b"here"), (b"a", b"x")]
    store.adopt([AgedAnswer(b"b", 0.0, b"x")])
    assert await kept(store, b"own", b"a", b"b") == [b"a", b"b"]


def test_of_too_much_the_most_recently_used_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(answer_stores, "MOST_BYTES", 10)
    file, _ = files_of(tmp_path)
    file.write([AgedAnswer(bytes([number]), 0.0, b"1234") for number in range(5)])
    assert [answer.key for answer in file.take()] == [b"\3", b"\4"]
    monkeypatch.setattr(answer_stores, "MOST_BYTES", 8)
    file.write([AgedAnswer(bytes([number]), 0.0, b"1234") for number in range(5)])
    assert [answer.key for answer in file.take()] == [b"\3", b"\4"], "they just fit"


def test_a_damaged_file_and_a_clock_that_was_set_back_give_nothing(tmp_path: Path) -> None:
    file, wall = files_of(tmp_path)
    path = tmp_path / "answers.0.msgpack"
    file.write([AgedAnswer(b"k", 0.0, b"v")])
    whole = path.read_bytes()
    for damaged in itertools.chain((whole[:cut] for cut in range(0, len(whole), 5)), [b"\xff" * 40]):
        path.write_bytes(damaged)
        assert file.take() == []
        assert not path.exists()
    path.write_bytes(whole)
    wall.now -= 1
    assert file.take() == []
    assert file.take() == []


def test_a_folder_that_cannot_be_written_is_no_error_and_what_is_lost_is_in_the_log(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("")
    AnswerFile(tmp_path / "file" / "answers").write([AgedAnswer(b"k", 0.0, b"v")])
    assert "cached answers are lost with this process" in caplog.text
    file, _ = files_of(tmp_path)
    answers_path(tmp_path, 0).write_bytes(b"\xff")
    assert file.take() == []
    assert "cached answers of the last process cannot be read" in caplog.text


def test_what_no_process_would_take_is_deleted(tmp_path: Path) -> None:
    for process in range(4):
        AnswerFile(answers_path(tmp_path, process)).write([AgedAnswer(b"k", 0.0, b"v")])
    (tmp_path / "other.msgpack").write_bytes(b"")
    delete_answers_beyond(tmp_path, 2)
    left = {answers_path(tmp_path, 0), answers_path(tmp_path, 1), tmp_path / "other.msgpack"}
    assert set(tmp_path.iterdir()) == left


def test_what_cannot_be_deleted_is_not_used_and_stops_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    file, _ = files_of(tmp_path)
    # A folder can be neither read nor deleted as a file.
    (tmp_path / "answers.0.msgpack").mkdir()
    assert file.take() == []
    assert "cached answers of the last process are not used, since they cannot be deleted" in caplog.text
    delete_answers_beyond(tmp_path, 0)
    assert "cached answers of a former process cannot be deleted" in caplog.text
    assert answer_stores.MOST_BYTES == 268_435_456


async def test_each_process_takes_its_own_answers_and_the_first_deletes_what_no_process_takes(tmp_path: Path) -> None:
    settings = Settings(data_dir=str(tmp_path))
    routing: Any = None
    # Written when there were four processes.
    for number in range(4):
        AnswerFile(answers_path(tmp_path, number)).write([AgedAnswer(b"%d" % number, 0.0, b"v")])
    for number in (1, 0):
        place = WorkerIdentity(number=number, count=2, folder="", listeners=(0,))
        async with running_cache(settings, place, None, routing, pytest.fail) as cache:
            assert await cache.store.get(b"%d" % number) == b"v"
            assert (answers_path(tmp_path, 3) in left_in(tmp_path)) == (number == 1)
    assert sorted(left_in(tmp_path)) == [answers_path(tmp_path, number) for number in range(2)]
    async with running_cache(settings, None, None, routing, pytest.fail) as cache:
        assert await cache.store.get(b"0") == b"v"
        assert left_in(tmp_path) == []
