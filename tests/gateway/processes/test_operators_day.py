"""What an operator sees in a day of a served process: who spent what, keys by name, routing, and its words."""

import re
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import httpx
import pytest

from migrations.tables.audit import JUDGE_TEST
from tests.gateway.operations.dashboard.browsing import forms_of
from tests.polling import until
from tests.support.administrator import ADMIN_KEY
from tests.support.served import UNCACHED, Serve, ServedProcess
from tests.support.upstream import Upstream, write_remote_catalog

pytestmark = pytest.mark.processes

TOOL = {"type": "function", "function": {"name": "look", "parameters": {"type": "object", "properties": {}}}}
_TAG = re.compile("<[^>]+>")


@pytest.fixture
def aio(upstream: Upstream, served: Serve) -> ServedProcess:
    return served(upstream=upstream, own_models=True, environment={"AIO_KEYS_POLL_SECONDS": "0.1"})


@pytest.fixture
def browser(aio: ServedProcess) -> Iterator[httpx.Client]:
    """Signed in as the administrator."""
    with httpx.Client(base_url=aio.url, timeout=60) as client:
        fields = forms_of(client.get("/admin/login"))["/admin/login"]["fields"]
        assert client.post("/admin/login", data=fields | {"name": "", "secret": ADMIN_KEY}).status_code == 303
        yield client


def command(folder: Path, *words: str) -> "subprocess.CompletedProcess[str]":
    program = [sys.executable, "-c", "from gateway.cli import main; main()"]
    return subprocess.run([*program, *words, "--data-dir", str(folder)], capture_output=True, text=True, timeout=200)


def made_key(aio: ServedProcess, name: str, team: str | None = None) -> dict[str, Any]:
    made = aio.admin.post("/admin/api/keys", json={"name": name, "team": team})
    assert made.status_code == 201, made.text
    key: dict[str, Any] = made.json()
    return key


def ask(
    aio: ServedProcess, key: dict[str, Any], model: str, text: str = "Hello there", **fields: Any
) -> httpx.Response:
    return aio.ask(text, key=key["key"], headers=UNCACHED, **{"model": model, "max_tokens": 20} | fields)


def stored(aio: ServedProcess, count: int) -> Callable[[], bool]:
    """Whether so many requests have reached the database."""
    return lambda: len(aio.admin.get("/admin/api/requests").json()["rows"]) == count


def rows(page: httpx.Response, table: str) -> list[list[str]]:
    """The texts of a table's cells."""
    body = page.text.split(f'aria-label="{table}"')[1].split("<tbody>")[1].split("</tbody>")[0]
    cells = [re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", row, re.DOTALL) for row in body.split("</tr>")[:-1]]
    return [[_TAG.sub("", cell).strip() for cell in row] for row in cells]


def test_keys_teams_and_models_are_billed_by_name_and_a_later_budget_counts_what_was_spent(
    aio: ServedProcess, browser: httpx.Client, tmp_path: Path
) -> None:
    assert aio.admin.post("/admin/api/teams", json={"name": "research"}).status_code == 201
    ada, bob = made_key(aio, "ada", "research"), made_key(aio, "bob")
    for key, model in ((ada, "tier-1"), (ada, "tier-4"), (bob, "tier-3")):
        assert ask(aio, key, model).status_code == 200
    until(stored(aio, 3))
    # The judge's test of itself belongs to no request.
    with closing(sqlite3.connect(tmp_path / "data" / "aio.sqlite3")) as database, database:
        database.execute(
            "INSERT INTO audit_events (created_at, actor, action, subject, details) VALUES (?, ?, ?, ?, ?)",
            [time.time(), "judge", JUDGE_TEST, "pairwise", '{"spent_usd": 3.0}'],
        )

    page = browser.get("/admin/routing")

    spent = {row[0]: row[1] for table in ("Keys", "Teams", "Models") for row in rows(page, table)}
    assert spent == {
        "ada": "2", "bob": "1", "research": "2", "no team": "1", "upstream-1": "1", "upstream-3": "1", "upstream-4": "1"
    }  # fmt: skip
    assert "test of the judge $3.00" in page.text
    report = aio.admin.get("/admin/api/report").json()["cost"]["costs"]
    total = report["total"]
    net = total["spent"]["baseline_usd"] - total["spent"]["cost_usd"] - 3.0
    assert total["net"]["share"] == pytest.approx(net / total["spent"]["baseline_usd"])

    of_team = next(one["spent"]["cost_usd"] for one in report["by_team"] if one["name"])
    budget = {"kind": "team", "subject": "research", "period": "month", "amount_usd": of_team * 1.001}
    assert aio.admin.put("/admin/api/budgets", json=budget).status_code == 200
    until(lambda: ask(aio, ada, "tier-4").status_code == 429)
    refused = ask(aio, ada, "tier-4").json()["error"]
    assert refused["code"] == "insufficient_quota"
    assert "the budget of team research ($" in refused["message"]
    assert ask(aio, bob, "tier-4").status_code == 200
    (state,) = aio.admin.get("/admin/api/budgets").json()["rows"]
    assert state["spent_usd"] == pytest.approx(of_team, abs=2e-6)
    assert rows(browser.get("/admin/keys"), "Table of budgets")[0][0] == "team research"


def test_pages_have_names_no_empty_places_and_one_saving(aio: ServedProcess, browser: httpx.Client) -> None:
    ada, bob = made_key(aio, "ada"), made_key(aio, "bob")
    assert ask(aio, bob, "tier-1", tools=[TOOL]).status_code == 200
    for number in range(30):
        assert ask(aio, ada, "auto", f"Hi {number}!").status_code == 200
    for number in range(10):
        text = f"Prove that every finite group of odd order less than {number} is solvable, formally and rigorously."
        assert ask(aio, ada, "auto", text).status_code == 200
    until(stored(aio, 41))

    shown = browser.get("/admin/requests", params={"key_id": "bob"})
    assert f'<a href="/admin/keys/{bob["key_id"]}">bob</a>' in shown.text
    assert ada["key_id"] not in shown.text
    assert '"/admin/core"' not in shown.text.split('<nav aria-label="Pages">')[1].split("</nav>")[0]
    assert aio.admin.get("/v1/admin/sessions").json()["sessions"] == []

    report = aio.admin.get("/admin/api/report").json()
    targets, costs = report["help"]["targets"], report["cost"]["costs"]
    answered = {int(part["name"]): part["spent"]["requests"] for part in costs["by_tier"]}
    # Routing chose no tier of the first request, which named one.
    answered[1] -= 1
    assert targets["requests"] == 40
    assert [round(40 * share) for share in targets["active"]["split"]] == [answered.get(k, 0) for k in range(1, 5)]
    assert f"routing saved ${costs['total']['net']['saved_usd']:.3f}, " in browser.get("/admin/routing").text

    fields = forms_of(browser.get("/admin/keys"))["/admin/keys"]["fields"]
    refused = browser.post("/admin/keys", data=fields | {"name": "eve", "team": "nobody", "scopes": "inference"})
    place = refused.text.split('<form method="post" action="/admin/keys">')[1].split('name="team"')[1].split("</p>")[0]
    assert (refused.status_code, 'aria-invalid="true"' in place) == (404, True)
    assert "There is no team" in place


def test_a_budget_and_a_rotated_secret_say_what_to_do_and_times_are_dates(aio: ServedProcess, tmp_path: Path) -> None:
    data = tmp_path / "data"
    made = command(data, "keys", "create", "eve", "--budget-day", "0.05")
    assert made.returncode == 0, made.stderr
    eve = {"key": made.stdout.splitlines()[-1]}
    until(lambda: ask(aio, eve, "tier-1").status_code == 200)

    refused = ask(aio, eve, "tier-4", max_tokens=400).json()["error"]
    assert refused["code"] == "insufficient_quota"
    said = re.search(r"the budget of key eve \(\$0\.05 per day\) has \$0\.0499\d+ left", refused["message"])
    most = re.search(r"A max_tokens of at most (\d+) would pass\.", refused["message"])
    assert said is not None, refused["message"]
    assert most is not None, refused["message"]
    assert ask(aio, eve, "tier-4", max_tokens=int(most[1])).status_code == 200

    removed = command(data, "keys", "limit", "eve", "--budget-day", "none")
    assert removed.stdout == "budget_day: $0.05 -> none\n"
    until(lambda: ask(aio, eve, "tier-4", max_tokens=400).status_code == 200)

    rotated = command(data, "keys", "rotate", "eve", "--grace-hours", "0").stdout
    assert re.match(r"the secret before is valid until 20\d\d-\d\d-\d\d \d\d:\d\d:\d\d UTC\n", rotated)
    until(lambda: ask(aio, eve, "tier-1").status_code == 401)
    assert (
        ask(aio, eve, "tier-1").json()["error"]["message"].startswith("This API key was rotated: use its new secret.")
    )


def test_files_of_other_editors_and_a_server_that_does_not_answer_end_with_a_sentence(tmp_path: Path) -> None:
    catalog = write_remote_catalog(tmp_path / "catalog.toml", "http://127.0.0.1:9/v1")
    text = catalog.read_text()
    catalog.write_bytes(b"\xef\xbb\xbf" + text.encode())
    words = ("route", "Hello", "--catalog", str(catalog))
    assert command(tmp_path / "data", *words).returncode == 0
    catalog.write_bytes(f"# café\n{text}".encode("latin-1"))
    refused = command(tmp_path / "data", *words)
    assert (refused.returncode, "Traceback" in refused.stderr) == (1, False)
    assert "it is not UTF-8: byte 0xe9 in line 1" in refused.stderr

    program = [sys.executable, "-c", "from gateway.cli import main; main()", "init", "--ports", "1"]
    tiers = ["--tier", "small=http://127.0.0.1:1/v1,small", "--tier", "large=http://127.0.0.1:1/v1,large"]
    output = tmp_path / "aio.toml"
    ended = subprocess.run([*program, *tiers, "--output", str(output)], capture_output=True, text=True, timeout=200)
    assert (ended.returncode, output.exists(), "Traceback" in ended.stderr) == (1, False, False)
    assert "http://127.0.0.1:1/v1 does not answer" in ended.stderr
