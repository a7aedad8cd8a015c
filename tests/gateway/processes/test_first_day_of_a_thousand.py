"""A thousand requests to what `aio init` and `aio serve` set up as they are make the labels of a first day."""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest
from sqlalchemy import create_engine

from tests.gateway.administrator import Administrator
from tests.gateway.processes.test_first_day import ASKED, SUM, first_day, is_worse, labelled
from tests.polling import until

pytestmark = pytest.mark.slow

REQUESTS = 1000
# Labels of the cheap tier, where rules judge and where a model does.
BY_RULE, BY_MODEL = 100, 12


def sums() -> list[str]:
    return [SUM.format(number) for number in range(REQUESTS)]


def chats() -> list[str]:
    return [ASKED[number % len(ASKED)].format(number) for number in range(REQUESTS)]


@pytest.mark.timeout(1800)
@pytest.mark.parametrize(("questions", "judge", "least"), [(sums, "exact", BY_RULE), (chats, "pairwise", BY_MODEL)])
def test_a_thousand_requests_make_as_many_labels_as_a_first_day_is_to_have(
    questions: Callable[[], Sequence[str]], judge: str, least: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    database = create_engine(f"sqlite:///{tmp_path / 'data' / 'aio.sqlite3'}")
    with first_day(tmp_path, monkeypatch) as url, httpx.Client(base_url=url, timeout=60, auth=Administrator()) as admin:
        until(lambda: admin.get("/admin/api/estimates").status_code == 200)

        def ask(question: str) -> int:
            body = {"model": "auto", "messages": [{"role": "user", "content": question}]}
            return admin.post("/v1/chat/completions", json=body).status_code

        with ThreadPoolExecutor(2) as clients:
            assert set(clients.map(ask, questions())) == {200}
        until(lambda: len(labelled(database)) >= least, every=0.5)
    found = labelled(database)
    database.dispose()
    assert {by for _, by, _, _ in found} == {judge}
    false = [question for _, _, question, label in found if (label == "worse") is not is_worse(question)]
    assert len(false) / len(found) <= (0.12 if judge == "pairwise" else 0.0)
