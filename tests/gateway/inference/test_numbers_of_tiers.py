"""Catalogues of two, three and six tiers through a real gateway: routed, recorded, verified and shown; what a catalogue
of four left in the store is still shown by one of two; and a catalogue that says no more than it must."""

import json
import re
import sqlite3
import time
from pathlib import Path
from typing import Any

import httpx
import pytest

from classifier.registry.artefact import default_artefact, load_artefact
from quality.verification.training_rows import encode_prompt
from tests.gateway.operations.dashboard.browsing import forms_of
from tests.gateway.operations.dashboard.real_traffic import WATCHED
from tests.polling import until
from tests.support.administrator import ADMIN_KEY
from tests.support.served import Serve, ServedProcess, served
from tests.support.upstream import Upstream, write_remote_catalog

pytestmark = pytest.mark.processes

# The upstream repeats it, so that the judge of equal words with numbers has something to compare.
PROMPT = "Repeat word for word: the first numbers are 1, 2 and 3."
PAGES = ("", "/routing", "/requests", "/quality", "/core", "/experiments", "/keys", "/users", "/system")
VIEWS = ("overview", "report", "estimates")


def ask(gateway: ServedProcess, model: str = "auto", **headers: str) -> httpx.Response:
    body = {"model": model, "messages": [{"role": "user", "content": PROMPT}]}
    return gateway.admin.post("/v1/chat/completions", json=body, headers={"x-aio-cache": "off", **headers})


def dashboard(gateway: ServedProcess) -> httpx.Client:
    """A browser of the administrator."""
    browser = httpx.Client(base_url=gateway.url, timeout=60)
    form = forms_of(browser.get("/admin/login"))["/admin/login"]
    assert browser.post("/admin/login", data=form["fields"] | {"secret": ADMIN_KEY}).status_code == 303
    return browser


def pages(gateway: ServedProcess, identity: str) -> dict[str, httpx.Response]:
    """Every page of the dashboard, that of one request too; all of them, and the figures behind them, are there."""
    browser = dashboard(gateway)
    # The monitor starts in the background.
    until(lambda: gateway.admin.get("/admin/api/estimates").status_code != 503)
    shown = {page: browser.get(f"/admin{page}") for page in (*PAGES, f"/requests/{identity}")}
    assert {page: answer.status_code for page, answer in shown.items()} == dict.fromkeys(shown, 200)
    views = {view: gateway.admin.get(f"/admin/api/{view}").status_code for view in VIEWS}
    assert views == dict.fromkeys(VIEWS, 200)
    return shown


def tiers_in(html: str, table: str) -> set[int]:
    """The tiers that have a row, or a head, in a page's table."""
    region = html.split(f'aria-label="{table}"')[1].split("</table>")[0]
    return {int(number) for number in re.findall(r"</svg>tier[- ](\d)", region)}


@pytest.mark.parametrize("tiers", [2, 3, 6])
def test_a_catalogue_of_any_number_of_tiers_is_routed_recorded_verified_and_shown(
    tmp_path: Path, upstream: Upstream, tiers: int, served: Serve
) -> None:
    catalog = write_remote_catalog(tmp_path / "catalog.toml", upstream.base_url, tiers)
    everyone = set(range(1, tiers + 1))
    # Six tiers' strongest costs 100,000 times the first: verification is drawn at any price.
    unbounded = WATCHED | {"AIO_VERIFICATION_BUDGET": "1e9", "AIO_VERIFICATION_MOST_USD": "1e9"}
    gateway = served("--catalog", str(catalog), environment=unbounded)
    answer = ask(gateway)
    assert answer.status_code == 200, answer.text
    assert answer.headers["x-aio-classifier"] != "heuristic"
    assert ask(gateway, **{"x-aio-min-tier": str(tiers)}).headers["x-aio-tier"] == str(tiers)
    assert ask(gateway, **{"x-aio-min-tier": str(tiers + 1)}).status_code == 400
    assert ask(gateway, f"tier-{tiers}").headers["x-aio-tier"] == str(tiers)
    assert ask(gateway, f"tier-{tiers + 1}").status_code == 404

    identity = answer.headers["x-request-id"]
    until(lambda: gateway.admin.get(f"/v1/requests/{identity}").status_code == 200)
    inputs = gateway.admin.get(f"/v1/requests/{identity}").json()["decision"]["inputs"]
    assert inputs["prediction"]["kind"] == "prior"
    assert len(inputs["prediction"]["p_ok"]) == len(inputs["costs"]) == tiers

    # The monitor starts after the first answers.
    until(lambda: gateway.admin.get("/admin/api/estimates").status_code == 200)
    estimates: dict[str, Any] = {}

    def is_verified() -> bool:
        # Which answers are verified is drawn.
        assert ask(gateway, "tier-1").status_code == 200
        estimates.update(gateway.admin.get("/admin/api/estimates").json())
        return bool(estimates["acceptance"])

    until(is_verified)
    assert {rate["tier"] for rate in estimates["upgrade_rates"]} == {None, *everyone} - {tiers}

    shown = pages(gateway, identity)
    assert tiers_in(shown[""].text, "Tiers") == everyone
    assert tiers_in(shown["/routing"].text, "How good the tiers are") == everyone
    assert tiers_in(shown["/routing"].text, "Kinds of prompts") == everyone - {tiers}
    assert tiers_in(shown[f"/requests/{identity}"].text, "Chances of the tiers") == everyone


def store_probe(data: Path, request_id: str, tiers: int) -> None:
    """A prompt that each of so many tiers answered, as the monitor stores it."""
    encoded = encode_prompt(load_artefact(default_artefact()), [{"role": "user", "content": PROMPT}])
    row = {
        "request_id": request_id, "source": "probe", "feature_spec": encoded.feature_spec,
        "embedding": encoded.embedding, "features": encoded.features, "no_worse": json.dumps([True] * tiers),
        "weights": json.dumps([1.0] * tiers), "created_at": time.time(),
    }  # fmt: skip
    with sqlite3.connect(next(data.glob("*.sqlite3"))) as database:
        places = ", ".join("?" * len(row))
        database.execute(f"INSERT INTO training_rows ({', '.join(row)}) VALUES ({places})", list(row.values()))


def test_what_a_catalogue_of_four_tiers_stored_is_shown_by_one_of_two(tmp_path: Path, upstream: Upstream) -> None:
    data, cache = tmp_path / "data", tmp_path / "cache"
    four = write_remote_catalog(tmp_path / "four.toml", upstream.base_url, 4)
    with served(data, cache, "--catalog", str(four)) as gateway:
        watch = {"mode": "observe", "reason": "what would be"}
        assert gateway.admin.patch("/v1/admin/knobs/routing", json=watch).status_code == 200
        answer = ask(gateway, **{"x-aio-min-tier": "4"})
        assert answer.headers["x-aio-would-be-tier"] == answer.headers["x-aio-tier"] == "4"
        identity = answer.headers["x-request-id"]
        until(lambda: gateway.admin.get(f"/v1/requests/{identity}").status_code == 200)
    store_probe(data, identity, 4)
    store_probe(data, "another", 2)
    two = write_remote_catalog(tmp_path / "two.toml", upstream.base_url, 2)
    with served(data, cache, "--catalog", str(two)) as gateway:
        assert ask(gateway).headers["x-aio-tier"] in "12"
        shown = pages(gateway, identity)
        assert tiers_in(shown[f"/requests/{identity}"].text, "Chances of the tiers") == {1, 2, 3, 4}
        assert tiers_in(shown["/routing"].text, "How good the tiers are") == {1, 2}
        ordered = gateway.admin.post("/admin/api/retrainings", json={"reason": "to see"})
        assert ordered.status_code < 300, ordered.text
        runs = {}
        until(
            lambda: (
                runs.update(gateway.admin.get("/admin/api/retrainings").json())
                or any(run["finished_at"] for run in runs["rows"])
            )
        )
        assert "1 newer rows; a comparison needs at least 50" in runs["rows"][0]["reason"], (
            "four tiers' probe is left out"
        )


def test_a_catalogue_of_names_and_urls_serves_and_marks_its_estimated_costs(
    tmp_path: Path, upstream: Upstream, served: Serve
) -> None:
    entries = "".join(
        f'[[tiers]]\nname = "{name}"\nurl = "{upstream.base_url}"\n' for name in ("large-70b", "small-3b")
    )
    (tmp_path / "short.toml").write_text(entries)
    short = str(tmp_path / "short.toml")
    gateway = served("--catalog", short)
    answer = ask(gateway, "tier-1")
    assert answer.status_code == 200, answer.text
    assert (answer.json()["x_aio"]["model"], answer.json()["x_aio"]["cost_estimated"]) == ("small-3b", True)
    assert answer.headers["x-aio-cost-estimated"] == "true"
    assert float(answer.headers["x-aio-cost-usd"]) > 0
    cards = gateway.admin.get("/v1/models").json()["data"]
    tiers = next(card for card in cards if card["id"] == "auto")["x_aio"]
    shown = [(tier["tier"], tier["model"], tier["price_estimated"], tier["tier_class"]) for tier in tiers]
    assert shown == [(1, "small-3b", "size", None), (2, "large-70b", "size", None)]
    dry = gateway.admin.post("/v1/route", json={"prompt": PROMPT}).json()
    assert dry["costs_estimated"] == [1, 2]
    identity = answer.headers["x-request-id"]
    until(lambda: gateway.admin.get(f"/v1/requests/{identity}").status_code == 200)
    html = pages(gateway, identity)
    assert all("estimated" in html[page].text for page in ("", "/routing", f"/requests/{identity}"))
