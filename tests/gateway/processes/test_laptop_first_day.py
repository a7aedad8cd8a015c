"""`aio serve` alone, with its default catalogue and real model: 160 requests, half of them for rules, reach labels."""

import os
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest
from sqlalchemy import Engine, create_engine, func, select

from gateway.operations.labels.label_sources import MACHINE_SHARE
from migrations.tables.quality import verifications
from quality.evaluation.everyday_tasks import everyday_tasks
from quality.judges.rules import ExactJudge
from tests.gateway.operations.dashboard.browsing import forms_of
from tests.gateway.processes.test_first_day import ASKED, SHIPPED
from tests.polling import until
from tests.support.administrator import ADMIN_KEY
from tests.support.served import ServedProcess, served

pytestmark = pytest.mark.slow

EACH, LABELS = 80, 30
# What verification may have of two cores in ten minutes: a busy machine takes longer for it.
CORE_SECONDS = 2 * 600 * MACHINE_SHARE


def questions() -> list[str]:
    """Everyday chats and everyday questions that a rule judges, by turns."""
    asked = (task.prompt for task in everyday_tasks(seed=1, per_level=10))
    checkable = [prompt for prompt in asked if ExactJudge().may_decide(prompt, None)][:EACH]
    chats = (ASKED[n % len(ASKED)].format(n) for n in range(EACH))
    return [question for pair in zip(chats, checkable, strict=True) for question in pair]


def by_rule(database: Engine) -> int:
    """How many answers rules have labelled."""
    v = verifications.c
    taught = (v.label.in_(("worse", "no_worse", "tie")), v.judge != "pairwise", v.sampled_reason != "feedback")
    with database.connect() as connection:
        return connection.scalar(select(func.count()).where(*taught)) or 0


def core_seconds(pid: int) -> float:
    """Processor time of a process and its children."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    own = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return own + sum(core_seconds(int(child)) for child in children)


def ask(server: ServedProcess, question: str) -> int:
    body = {"model": "auto", "messages": [{"role": "user", "content": question}]}
    return httpx.post(f"{server.url}/v1/chat/completions", json=body, timeout=600).status_code


def pages(server: ServedProcess, *paths: str) -> list[str]:
    """The pages of the dashboard, signed in."""
    with httpx.Client(base_url=server.url, timeout=60) as browser:
        form = forms_of(browser.get("/admin/login", params={"next": "/admin"}))["/admin/login"]
        browser.post("/admin/login", data=form["fields"] | {"name": "", "secret": ADMIN_KEY})
        return [browser.get(path).raise_for_status().text for path in paths]


@pytest.mark.timeout(3600)
def test_160_requests_half_of_them_for_rules_make_30_labels_in_the_idle_time_of_ten_minutes(
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
        before = core_seconds(server.process.pid)

        def is_over() -> bool:
            return by_rule(database) >= LABELS or core_seconds(server.process.pid) > before + CORE_SECONDS

        until(is_over, every=1.0)
        found = by_rule(database)
        # The test of the judge goes on at the same time.
        until(lambda: "as their judge (right" in httpx.get(f"{server.url}/health/ready", timeout=60).json()["labels"])
        quality, routing = pages(server, "/admin/quality/details", "/admin/routing")
    database.dispose()
    assert found >= LABELS
    assert "open answers get none, because the strongest tier is refused as their judge" in quality
    assert "No answer has been verified yet" not in routing
    assert "Nothing was spent in this period" not in routing
