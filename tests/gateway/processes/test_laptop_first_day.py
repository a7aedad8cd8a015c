"""`make run` alone, with its shipped catalogue and real model: 160 requests, half of them for rules, reach labels."""

import os
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
from sqlalchemy import Engine, create_engine, func, select

from migrations.tables.quality import verifications
from tests.gateway.administrator import ADMIN_KEY, Administrator
from tests.gateway.operations.dashboard.browsing import forms_of
from tests.gateway.processes.test_first_day import ASKED, SHIPPED
from tests.gateway.served_process import ServedProcess, served
from tests.polling import until

pytestmark = pytest.mark.slow

EACH = 80
LABELS, IDLE_SECONDS = 30, 600.0
# What rules judge: numbers, words to the letter, and options.
CHECKABLE = (
    "Add 4 to number {}. Answer with the number only.",
    "How much is {} times 3? Answer with the number only.",
    "Is {} an even number? Answer yes or no.",
    "Repeat exactly: number {}",
)


def questions() -> list[str]:
    """Everyday chats and what rules judge, by turns."""
    of = [(ASKED[n % len(ASKED)], CHECKABLE[n % len(CHECKABLE)]) for n in range(EACH)]
    return [form.format(n) for n, forms in enumerate(of) for form in forms]


def by_rule(database: Engine) -> int:
    """How many answers rules have labelled."""
    v = verifications.c
    taught = (v.label.in_(("worse", "no_worse", "tie")), v.judge != "pairwise", v.sampled_reason != "feedback")
    with database.connect() as connection:
        return connection.scalar(select(func.count()).where(*taught)) or 0


def ask(server: ServedProcess, question: str) -> int:
    body = {"model": "auto", "messages": [{"role": "user", "content": question}]}
    return httpx.post(f"{server.url}/v1/chat/completions", json=body, timeout=300).status_code


def page(browser: httpx.Client, path: str) -> str:
    answer = browser.get(path)
    assert answer.status_code == 200, path
    return answer.text


@pytest.mark.timeout(2400)
def test_half_of_160_requests_checkable_make_30_labels_in_ten_idle_minutes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
    database = create_engine(f"sqlite:///{tmp_path / 'data' / 'aio.sqlite3'}")
    with served(tmp_path / "data", tmp_path / "cache", environment=SHIPPED) as server:
        server.until_whole()
        until(lambda: server.admin.get("/admin/api/estimates").status_code == 200)
        with ThreadPoolExecutor(4) as clients:
            assert set(clients.map(lambda question: ask(server, question), questions())) == {200}

        until(lambda: by_rule(database) >= LABELS, every=1.0)

        judge = until_judged(server)
        with httpx.Client(base_url=server.url, timeout=60) as browser:
            form = forms_of(browser.get("/admin/login", params={"next": "/admin"}))["/admin/login"]
            browser.post("/admin/login", data=form["fields"] | {"name": "", "secret": ADMIN_KEY})
            quality, routing = page(browser, "/admin/quality"), page(browser, "/admin/routing")
    database.dispose()
    assert judge["state"] == "refused"
    assert "refused as their judge" in quality
    assert "Nothing was verified" not in quality
    assert "requests" in routing
