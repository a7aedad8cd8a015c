"""A day of a thousand requests to what `aio init` and `aio serve` set up as they are makes the labels of a first day.

The server's clock is the test's own: between two requests it goes on by a thousandth of a day.
"""

import struct
from collections.abc import Callable, Sequence
from pathlib import Path

import httpx
import pytest
from sqlalchemy import create_engine

from tests.attacks.targets import IN_PROCESS
from tests.gateway.processes.test_first_day import ASKED, SUM, first_day, is_worse, labelled
from tests.polling import until
from tests.support.administrator import Administrator

pytestmark = pytest.mark.slow

REQUESTS, DAY_SECONDS = 1000, 86_400.0
# Labels of the cheap tier, where rules judge and where a model does.
BY_RULE, BY_MODEL = 100, 12


def sums() -> list[str]:
    return [SUM.format(number) for number in range(REQUESTS)]


def chats() -> list[str]:
    return [ASKED[number % len(ASKED)].format(number) for number in range(REQUESTS)]


@pytest.mark.timeout(1800)
@pytest.mark.parametrize(("questions", "judge", "least"), [(sums, "exact", BY_RULE), (chats, "pairwise", BY_MODEL)])
def test_a_day_of_a_thousand_requests_makes_as_many_labels_as_a_first_day_is_to_have(
    questions: Callable[[], Sequence[str]], judge: str, least: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = tmp_path / "clock"
    clock.write_bytes(struct.pack("d", 0.0))
    monkeypatch.setenv("ATTACK_CLOCK", str(clock))
    monkeypatch.syspath_prepend(IN_PROCESS)
    database = create_engine(f"sqlite:///{tmp_path / 'data' / 'aio.sqlite3'}")
    with first_day(tmp_path, monkeypatch) as url, httpx.Client(base_url=url, timeout=60, auth=Administrator()) as admin:
        until(lambda: admin.get("/admin/api/estimates").status_code == 200)
        for number, question in enumerate(questions()):
            with clock.open("r+b") as file:
                file.write(struct.pack("d", number * DAY_SECONDS / REQUESTS))
            body = {"model": "auto", "messages": [{"role": "user", "content": question}]}
            assert admin.post("/v1/chat/completions", json=body).status_code == 200
        until(lambda: len(labelled(database)) >= least, every=0.5)
    found = labelled(database)
    database.dispose()
    assert {by for _, by, _, _ in found} == {judge}
    false = [question for _, _, question, label in found if (label == "worse") is not is_worse(question)]
    assert len(false) / len(found) <= (0.12 if judge == "pairwise" else 0.0)
