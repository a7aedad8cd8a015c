"""Two hundred open questions to what `aio init` and `aio serve` set up as they are: labels exist without a command."""

import hashlib
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from sqlalchemy import Engine, create_engine, select

from benchmarks.replay.comparisons import as_written, comparison_in
from gateway.base.settings import Settings
from migrations.tables.quality import verifications
from migrations.tables.requests import requests
from quality.judges.pairwise import Word
from tests.gateway.operations.setup.model_servers import model_server, openai_pages
from tests.polling import until
from tests.quality.judges.test_judges import better_of
from tests.quality.judges.test_self_calibration import GOOD
from tests.support.administrator import Administrator
from tests.support.served import READY, started

pytestmark = pytest.mark.processes

AIO = [sys.executable, "-c", "from gateway.cli import main; main()"]
# What a person sets for nothing; the other tests' gateways verify nothing merely because a catalogue is new.
SHIPPED = {"AIO_COLD_START_USD": str(Settings().cold_start_usd)}
ASKED = (
    "Write a friendly e-mail to client number {} about the delay of the delivery.",
    "Explain to apprentice number {} how a heat pump warms a house.",
    "Summarise what the residents of house number {} said about the noise at night.",
    "Tell me what makes village number {} in the hills worth a visit.",
)
# What a rule judges.
SUM = "Add 4 to number {}. Answer with the number only."
QUESTIONS = [ASKED[n % len(ASKED)].format(n) for n in range(200)]


def number_of(question: str) -> int:
    return int(re.findall(r"number (\d+)", question)[0])


def is_worse(question: str) -> bool:
    """Whether the cheap model is wrong about it."""
    return number_of(question) % 3 == 0


def cheap(body: dict[str, Any]) -> str:
    question = body["messages"][-1]["content"]
    if question.startswith("Add"):
        return str(number_of(question) + (5 if is_worse(question) else 4))
    return f"A {'wrong' if is_worse(question) else 'right'} answer, in short, to this: {question}"


def strong(body: dict[str, Any]) -> str:
    """Answer rightly; compare two answers with an error in 8% of the pairs, alike in both orders."""
    question = body["messages"][-1]["content"]
    if question.startswith("Add"):
        return str(number_of(question) + 4)
    if (asked := comparison_in(question)) is None:
        return f"A right answer, {body.get('temperature')}, to this: {question}"
    first, second = as_written(asked.first), as_written(asked.second)
    errs = hashlib.sha256(f"{sorted((first, second))}".encode()).digest()[0] < 0.08 * 256
    said = better_of(is_good(first), is_good(second))
    if errs:
        wrong: dict[Word, Word] = {"first": "second", "second": "first", "tie": "first" if first < second else "second"}
        said = wrong[said]
    return asked.label(asked.control or said)


def is_good(text: str) -> bool:
    return text in GOOD or text.startswith("A right answer")


@contextmanager
def first_day(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The URL of a gateway as a new user has it, in front of two servers."""
    monkeypatch.chdir(folder)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(folder))
    with (
        model_server(openai_pages("small-3b"), say=cheap) as small,
        model_server(openai_pages("large-70b"), say=strong) as large,
    ):
        given = [f"small={small.url},small-3b", f"large={large.url},large-70b"]
        made = subprocess.run(
            [*AIO, "init", "--tier", given[0], "--tier", given[1], "--ports", str(small.port)],
            capture_output=True,
            text=True,
            check=False,
        )
        assert made.returncode == 0, made.stderr
        assert "starts it, for at most $0.50" in made.stdout
        with started(folder / "data", folder / "cache", "--port", "0", environment=SHIPPED) as process:
            assert process.stdout is not None
            yield next(found[1] for line in process.stdout if (found := READY.search(line)))


def test_open_answers_get_labels_without_another_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    database = create_engine(f"sqlite:///{tmp_path / 'data' / 'aio.sqlite3'}")
    with first_day(tmp_path, monkeypatch) as url, httpx.Client(base_url=url, timeout=60, auth=Administrator()) as admin:

        def is_done() -> bool:
            now = admin.get("/admin/api/estimates").json()
            # A probe waits for a budget of its own.
            return bool(now["sampled"] and not now["held"]) and not waiting(database)

        until(lambda: admin.get("/admin/api/estimates").status_code == 200)
        # All at once, as a script asks: the first of them are drawn before the judge is trusted.
        for question in QUESTIONS:
            body = {"model": "auto", "messages": [{"role": "user", "content": question}]}
            answer = admin.post("/v1/chat/completions", json=body)
            assert answer.status_code == 200, answer.text
        until(is_done, every=0.2)
        ready = admin.get("/health/ready").json()
    assert "so a label weighs 0." in ready["labels"]
    found = verified(database)
    database.dispose()
    taught = [(question, label) for question, label in found if label in ("worse", "no_worse", "tie")]
    false = [(question, label) for question, label in taught if (label == "worse") is not is_worse(question)]
    assert len(found) >= len(QUESTIONS) / 20
    assert 1 - len(taught) / len(found) <= 0.20, f"{len(taught)} of {len(found)}"
    assert len(false) / len(taught) <= 0.12, f"{len(false)} of {len(taught)}"


def test_the_first_answers_that_a_rule_judges_are_labelled_for_every_tier(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    database = create_engine(f"sqlite:///{tmp_path / 'data' / 'aio.sqlite3'}")
    with first_day(tmp_path, monkeypatch) as url, httpx.Client(base_url=url, timeout=60, auth=Administrator()) as admin:
        until(lambda: admin.get("/admin/api/estimates").status_code == 200)
        for number in range(10):
            body = {"model": "auto", "messages": [{"role": "user", "content": SUM.format(number)}]}
            assert admin.post("/v1/chat/completions", json=body).status_code == 200
        until(lambda: len(labelled(database)) >= 5, every=0.2)
    found = labelled(database)
    database.dispose()
    assert {(purpose, judge) for purpose, judge, _, _ in found} == {("probe", "exact")}
    assert all((label == "worse") is is_worse(question) for _, _, question, label in found)


def labelled(database: Engine) -> list[tuple[str, str, str, str]]:
    """The purpose, the judge, the question and the label of each answer of tier 1 that has one."""
    columns = verifications.c.sampled_reason, verifications.c.judge, requests.c.messages, verifications.c.label
    query = (
        select(*columns)
        .join_from(verifications, requests, requests.c.request_id == verifications.c.request_id)
        .where(verifications.c.label.is_not(None), verifications.c.tier == 1)
    )
    with database.connect() as connection:
        found = connection.execute(query).all()
    return [(purpose, judge, messages[-1]["content"], label) for purpose, judge, messages, label in found]


def waiting(database: Engine) -> int:
    pending = (verifications.c.status == "pending", verifications.c.sampled_reason != "probe")
    with database.connect() as connection:
        return len(connection.execute(select(verifications.c.verification_id).where(*pending)).all())


def verified(database: Engine) -> list[tuple[str, str | None]]:
    """The question and the label of each verification that has ended."""
    query = (
        select(requests.c.messages, verifications.c.label)
        .join_from(verifications, requests, requests.c.request_id == verifications.c.request_id)
        .where(verifications.c.finished_at.is_not(None))
    )
    with database.connect() as connection:
        return [(messages[-1]["content"], label) for messages, label in connection.execute(query)]
