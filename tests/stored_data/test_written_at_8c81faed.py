"""A gateway starts on a data folder, a catalogue and an environment of commit 8c81faed that use what is gone since.

`aio serve` and `aio retrain` of that commit wrote the folder `written_at_8c81faed`: its database as an SQL dump at
revision 0042, the rest as it was written. `UPSTREAM` and `DATA_FOLDER` stand for places. The first version of its
classifier, and the weights that both versions are over, are those of `written_at_0019`.
"""

import asyncio
import os
import shutil
import sqlite3
import subprocess
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import pytest
from click.testing import CliRunner
from sqlalchemy import MetaData, create_engine, func, select

from gateway.base.configuration import own_command
from gateway.base.gone import GONE_KNOBS, GONE_VARIABLES
from gateway.cli import main
from quality.store.database import downgrade, migrate, open_database
from tests.support.administrator import bearer
from tests.support.served import ServedProcess, served
from tests.support.upstream import running_upstream

STORED = Path(__file__).with_name("written_at_8c81faed")
FIRST = Path(__file__).with_name("written_at_0019") / "classifier" / "v1-2dbec3ba3452"
RETRAINED = "v1-53f4c1052438"
KEY = "sk-aio-ODKH8zgBb2Kvb_bUHcgxxFiLi5Z248-TqYMRRQOU_3M"
REQUESTS = {
    "chatcmpl-01a22d1f7f0489936dd13fd4116d193e": "miss",
    "chatcmpl-01a22d1f80a4961574f8fda930b5a930": "hit",
    "chatcmpl-01a22d1f80bd24f9469a2025b512615e": "similar",
}
RESPONSE = "resp_01a22d1f817ec40f4885ed3a1e606630"
ALERT_URLS = "into AIO_ALERT_URLS"
MAIL = "mailtos://USER:PASSWORD@HOST:587?from=ADDRESS&to=ADDRESS"
PRICE = "as `price` of a tier"
VARIABLES = {
    "AIO_ALERT_SLACK_WEBHOOK": ALERT_URLS,
    "AIO_ALERT_TEAMS_WEBHOOK": ALERT_URLS,
    "AIO_ALERT_WEBHOOK": "pagerduty://INTEGRATION_KEY@API_KEY",
    "AIO_ALERT_WEBHOOK_FILE": "pagerduty://INTEGRATION_KEY@API_KEY",
    "AIO_ALERT_ROUTING_KEY": "pagerduty://INTEGRATION_KEY@API_KEY",
    "AIO_ALERT_ROUTING_KEY_FILE": "pagerduty://INTEGRATION_KEY@API_KEY",
    "AIO_ALERT_SMTP": MAIL,
    "AIO_ALERT_SMTP_USER": MAIL,
    "AIO_ALERT_SMTP_PASSWORD": MAIL,
    "AIO_ALERT_SMTP_PASSWORD_FILE": "AIO_ALERT_URLS_FILE names a file",
    "AIO_ALERT_EMAIL_TO": MAIL,
    "AIO_ALERT_EMAIL_FROM": MAIL,
    "AIO_ERROR_REPORT_DSN": "AIO_LOG_FORMAT=json",
    "AIO_ERROR_REPORT_DSN_FILE": "AIO_LOG_FORMAT=json",
    "AIO_PRICE_LIST_URL": PRICE,
    "AIO_PRICE_LIST_KEY": PRICE,
}
STORED_NAMES = {
    "the knob semantic in": "only equal requests share answers",
    "the knob semantic_threshold in": "only equal requests share answers",
    "price_list.json is no longer read": PRICE,
}
PATHS = {
    "GET /v1/admin/knobs": "/v1/admin/knobs/core",
    "PATCH /v1/admin/knobs": "/v1/admin/knobs/core",
    "GET /v1/admin/routing": "/v1/admin/knobs/routing",
    "PATCH /v1/admin/routing": "/v1/admin/knobs/routing",
    "GET /v1/admin/cache": "/v1/admin/knobs/cache",
    "PATCH /v1/admin/cache": "/v1/admin/knobs/cache",
    "GET /v1/admin/batches": "/v1/admin/knobs/batches",
    "PATCH /v1/admin/batches": "/v1/admin/knobs/batches",
    "GET /v1/admin/replicas": "/v1/admin/knobs/replicas",
    "PATCH /v1/admin/replicas": "/v1/admin/knobs/replicas",
    "GET /admin/api/costs": "'cost.costs' of GET /admin/api/report",
    "GET /admin/api/learning": "'help.learning' of GET /admin/api/report",
    "GET /admin/api/shadow": "'worth.observed' of GET /admin/api/report",
    "GET /admin/api/worth": "'worth' of GET /admin/api/report",
    "GET /admin/api/routing/curve": "'help.targets' of GET /admin/api/report",
    "GET /admin/api/routing/first-day": "'help.targets' of GET /admin/api/report",
    "GET /admin/api/routing/kinds": "'quality.kinds' of GET /admin/api/report",
    "GET /admin/api/routing/preview": "'help.targets' of GET /admin/api/report",
    "GET /admin/api/routing/reliability": "'quality.calibration' of GET /admin/api/report",
    "GET /admin/api/routing/tiers": "'quality.tiers' of GET /admin/api/report",
    "GET /admin/api/routing/traffic": "'cost.costs' of GET /admin/api/report",
}
LADDER = "`aio bench ladder` measures it"
COMMANDS = {
    "adapters train MODEL FOLDER --recipe ladder": LADDER,
    "adapters train MODEL FOLDER --from FOLDER": LADDER,
    "adapters train MODEL FOLDER --rows 10": LADDER,
    "adapters train MODEL FOLDER --steps 10": LADDER,
    "backtest LOG --training FOLDER": "`aio outcomes import` learns",
    "backtest LOG --example": "docs/routing.md has an example",
    "backtest LOG --rows 10": "docs/routing.md has an example",
    "backtest LOG --data FOLDER": "docs/routing.md has an example",
    "bench ladder --seed 3": "the tasks are always the same",
    "bench serve --catalog laptop": "start `aio serve` with the catalogue",
    "bench serve --cache-dir FOLDER": "start `aio serve` with the folder",
    "check --security": "every start name the ten worst mistakes",
    "kv-calc --catalog laptop": "`aio models --catalog NAME`",
    "quantize MODEL FOLDER --bits 4": "the method decides",
    "report live --days 3": "'What it costs'",
    "report learning": "'What would help'",
    "report worth": "'Does it pay?'",
    "report shadow": "'Does it pay?'",
    "report --last 100": "--days chooses the period",
    "report --since 2026-01-01": "--days chooses the period",
}


class Restarted(NamedTuple):
    """The gateway that runs on a copy of the folder, its data folder and what its processes were given."""

    aio: ServedProcess
    folder: Path
    environment: dict[str, str]

    def ask(self, path: str, **query: Any) -> httpx.Response:
        return httpx.get(f"{self.aio.url}{path}", headers=bearer(KEY), params=query, timeout=60)

    def shown(self, path: str) -> Any:
        answer = self.aio.admin.get(path)
        assert answer.is_success, answer.text
        return answer.json()


def copied_to(folder: Path, upstream: str) -> None:
    """Make the data folder, with the catalogue next to its files."""
    shutil.copytree(STORED, folder, ignore=shutil.ignore_patterns("aio.sql", "aio.toml"))
    shutil.copytree(FIRST, folder / "classifier" / FIRST.name)
    shutil.copyfile(FIRST / "base.safetensors", folder / "classifier" / RETRAINED / "base.safetensors")
    (folder / "aio.toml").write_text((STORED / "aio.toml").read_text().replace("UPSTREAM", upstream))
    with closing(sqlite3.connect(folder / "aio.sqlite3")) as database:
        database.executescript((STORED / "aio.sql").read_text().replace("DATA_FOLDER", str(folder)))


async def copy_rows(file: Path, url: str) -> None:
    """Make the same database, at the revision of `file`, in an empty PostgreSQL."""
    await migrate(url)
    await downgrade(url, "0042")
    target, tables = open_database(url), MetaData()
    async with target.begin() as connection:
        await connection.run_sync(tables.reflect)
        with create_engine(f"sqlite:///{file}").connect() as source:
            for table in tables.sorted_tables:
                columns = [column for column in table.columns if column.computed is None]
                rows = [dict(row) for row in source.execute(select(*columns)).mappings()]
                await connection.execute(table.delete())  # what the schema itself has rows of
                if rows:
                    await connection.execute(table.insert(), rows)
                for column in table.primary_key:
                    if rows and column.autoincrement is True and column.server_default is not None:
                        last = func.max(column)
                        sequence = func.pg_get_serial_sequence(table.name, column.name)
                        await connection.execute(select(func.setval(sequence, select(last).scalar_subquery())))
    await target.dispose()


@pytest.fixture(
    scope="module", params=[pytest.param(kind, marks=pytest.mark.processes) for kind in ("sqlite", "postgresql")]
)
def restarted(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Restarted]:
    """The new code on the old folder, with every variable that is gone."""
    folder = tmp_path_factory.mktemp("older") / "data"
    with running_upstream() as upstream:
        copied_to(folder, upstream.base_url.removesuffix("/v1"))
        environment = dict.fromkeys(VARIABLES, "s3cret")
        environment |= {"MIDDLE_KEY": "k", "AIO_CATALOG": str(folder / "aio.toml")}
        if request.param == "postgresql":
            environment["AIO_DATABASE_URL"] = request.getfixturevalue("postgres_server").emptied_database()
            asyncio.run(copy_rows(folder / "aio.sqlite3", environment["AIO_DATABASE_URL"]))
        kept = {"AIO_TEXT_DAYS": "36500", "AIO_RETAIN_DAYS": "36500", "AIO_FILE_DAYS": "36500", "AIO_MONITOR": "false"}
        with served(folder, folder / "cache", environment=environment | kept) as aio:
            yield Restarted(aio, folder, environment | kept)


def test_the_start_names_each_gone_thing_once_with_what_to_do_instead(restarted: Restarted) -> None:
    log = (restarted.folder / "log").read_text()
    assert "s3cret" not in log
    lines = log.splitlines()
    for name, instead in (VARIABLES | STORED_NAMES).items():
        [line] = [line for line in lines if f"{name} " in line and "WARNING" in line]
        assert instead in line


def test_a_check_names_each_gone_thing_once_with_what_to_do_instead(restarted: Restarted) -> None:
    command = own_command("check", "--data-dir", str(restarted.folder))
    done = subprocess.run(command, env=_without_aio() | restarted.environment, capture_output=True, text=True)
    assert "s3cret" not in done.stdout
    for name, instead in (VARIABLES | STORED_NAMES).items():
        [line] = [line for line in done.stdout.splitlines() if line.startswith("warning:") and f"{name} " in line]
        assert instead in line


def test_keys_teams_and_budgets_hold(restarted: Restarted) -> None:
    keys = {key["name"]: key for key in restarted.shown("/admin/api/keys")["rows"]}
    assert keys.keys() == {"notebook", "retired", "erased"}
    assert keys["retired"]["paused_at"] is not None
    assert [team["name"] for team in restarted.shown("/admin/api/teams")["rows"]] == ["research"]
    budgets = restarted.shown("/admin/api/budgets")["rows"]
    amounts = {(row["subject_kind"], row["period"]): row["amount_usd"] for row in budgets}
    assert amounts == {("key", "day"): 5.0, ("team", "month"): 50.0}
    assert restarted.aio.ask("hello", key=KEY).status_code == 200
    assert restarted.aio.ask("hello").status_code == 401


def test_requests_are_shown_with_their_texts_and_what_the_cache_made_of_them(restarted: Restarted) -> None:
    for request, cache in REQUESTS.items():
        shown = restarted.shown(f"/admin/api/requests/{request}")
        assert shown["request"]["messages"][-1]["content"].endswith("hat is the capital of Chile?")
        assert shown["request"]["cache"] == cache
        assert restarted.ask(f"/v1/requests/{request}").status_code == 200


def test_a_stored_response_can_be_continued(restarted: Restarted) -> None:
    assert restarted.ask(f"/v1/responses/{RESPONSE}").json()["id"] == RESPONSE
    body = {"model": "tier-1", "input": "And then?", "previous_response_id": RESPONSE}
    answer = httpx.post(f"{restarted.aio.url}/v1/responses", json=body, headers=bearer(KEY), timeout=60)
    assert answer.status_code == 200, answer.text


def test_a_batch_keeps_its_results(restarted: Restarted) -> None:
    [batch] = restarted.ask("/v1/batches").json()["data"]
    assert batch["status"] == "completed"
    assert '"custom_id":"a"' in restarted.ask(f"/v1/files/{batch['output_file_id']}/content").text


def test_a_session_keeps_its_steps(restarted: Restarted) -> None:
    [session] = restarted.shown("/v1/admin/sessions")["sessions"]
    assert len(restarted.shown(f"/v1/admin/sessions/{session['session']}")["steps"]) == session["steps"] == 2


def test_labels_count_for_the_catalogue(restarted: Restarted) -> None:
    [kept] = restarted.shown("/admin/api/outcomes/imports")["rows"]
    assert kept["labels"] == 6
    statuses = [row["status"] for row in restarted.shown("/admin/api/verifications")["rows"]]
    assert sorted(statuses) == ["done", "done", "skipped"]
    learned = restarted.shown("/admin/api/report")["help"]["learning"]["keys"]
    assert {row["name"]: row["labels"] for row in learned} == {"requests without a key": 6, "notebook": 2}


def test_the_retrained_version_stays_on_trial(restarted: Restarted) -> None:
    versions = {row["version"]: row["status"] for row in restarted.shown("/admin/api/artefacts")["rows"]}
    assert versions == {RETRAINED: "canary", FIRST.name: "promoted"}
    classifier = restarted.shown("/v1/admin/knobs/routing")["classifier"]
    assert (classifier["current"], classifier["canary"], classifier["share"]) == (FIRST.name, RETRAINED, 0.1)
    assert classifier["refusal"] == ""


def test_stored_knobs_hold(restarted: Restarted) -> None:
    routing = restarted.shown("/v1/admin/knobs/routing")["knobs"]
    assert (routing["conversation_seconds"], routing["quality_target"]) == (120, "economy")
    assert restarted.shown("/v1/admin/knobs/cache")["knobs"]["ttl_seconds"] == 77
    assert restarted.shown("/v1/admin/knobs/batches")["knobs"]["concurrency"] == 2
    [strong] = restarted.shown("/v1/admin/knobs/replicas")["tiers"]
    assert strong["knobs"]["hedging"]
    history = restarted.shown("/v1/admin/knobs/changes")["changes"]
    assert GONE_KNOBS.keys() < {change["knob"] for change in history}


def test_the_report_and_the_pages_are_shown(restarted: Restarted) -> None:
    assert restarted.shown("/admin/api/report")["cost"]["costs"]["total"]["spent"]["requests"] >= 6
    assert restarted.shown("/admin/api/overview")["overall"] is not None


@pytest.mark.parametrize("asked", PATHS)
def test_a_path_that_is_gone_says_which_took_its_place(restarted: Restarted, asked: str) -> None:
    method, path = asked.split()
    answer = restarted.aio.admin.request(method, path, json={} if method == "PATCH" else None)
    assert (answer.status_code, answer.json()["error"]["code"]) == (410, "endpoint_gone")
    assert PATHS[asked] in answer.json()["error"]["message"]


@pytest.mark.parametrize("knob", GONE_KNOBS)
def test_a_knob_that_is_gone_cannot_be_changed(restarted: Restarted, knob: str) -> None:
    answer = restarted.aio.admin.patch("/v1/admin/knobs/cache", json={knob: 1})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, knob)
    assert "only equal requests share answers" in answer.json()["error"]["message"]


def test_a_mode_of_the_cache_that_is_gone_says_which_took_its_place(restarted: Restarted) -> None:
    answer = restarted.aio.ask("hello", key=KEY, headers={"x-aio-cache": "exact"})
    assert answer.status_code == 400
    assert "use shares answers of equal requests alone" in answer.json()["error"]["message"]


@pytest.mark.parametrize("command", COMMANDS)
def test_an_option_that_is_gone_says_what_to_do_instead(command: str, tmp_path: Path) -> None:
    log = tmp_path / "LOG"
    log.touch()
    words = [str(log) if word == "LOG" else word for word in command.split()]
    done = CliRunner().invoke(main, words)
    assert (done.exit_code, "is gone" in done.output) == (2, True), done.output
    assert COMMANDS[command] in done.output


def test_this_table_has_all_variables_that_are_gone() -> None:
    assert VARIABLES.keys() == GONE_VARIABLES.keys()


def _without_aio() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith("AIO_")}
