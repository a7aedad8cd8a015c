"""`aio route` decides as a running server of the same data folder does: for the same key, with the same labels."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from gateway.cli import main
from tests.support.app import RunningGateway, StartApp

PROMPT = "What is the capital of France?"
LANDS = [
    f"{a}{b}" for a in ("Fran", "Spa", "Ita", "Nor", "Pol", "Gre", "Ira", "Chi") for b in ("ce", "in", "ly", "way")
]


async def said(data: Path, *words: str) -> str:
    """What the command prints; it runs in a thread, because it has an event loop of its own."""
    ran = await asyncio.to_thread(CliRunner().invoke, main, [*words, "--data-dir", str(data)])
    assert ran.exit_code == 0, ran.output
    return ran.output


async def by_server(aio: RunningGateway, key: str | None) -> dict[str, Any]:
    headers = {} if key is None else {"authorization": f"Bearer {key}"}
    answer = await aio.http.post("/v1/route", json={"prompt": PROMPT}, headers=headers)
    assert answer.status_code == 200, answer.text
    decision: dict[str, Any] = answer.json()["decision"]
    return decision


async def by_command(data: Path, *words: str) -> dict[str, Any]:
    decision: dict[str, Any] = json.loads(await said(data, "route", PROMPT, "--json", *words))["decision"]
    return decision


@pytest.mark.processes
async def test_the_command_decides_as_the_server_for_each_key(tmp_path: Path, app: StartApp) -> None:
    outcomes = tmp_path / "outcomes.jsonl"
    lines = [{"prompt": f"What is the capital of {land}?", "scores": {"1": 0.9, "4": 0.95}} for land in LANDS]
    outcomes.write_text("\n".join(map(json.dumps, lines)))
    data = tmp_path / "data"
    aio = await app(protocol="httptools", data_dir=str(data))
    orders: dict[str, dict[str, Any]] = {"ada": {}, "bob": {}, "dear": {"tiers": [3, 4]}, "floor": {"min_tier": 2}}
    keys = {
        name: (await aio.http.post("/admin/api/keys", json={"name": name, "terms": terms})).json()
        for name, terms in orders.items()
    }
    before = await by_server(aio, keys["ada"]["key"])
    imported = json.loads(
        await said(data, "outcomes", "import", str(outcomes), "--key", keys["ada"]["key_id"], "--json")
    )
    active = aio.operations.active_labels
    assert active is not None
    await active.catch_up(0.0)
    learned = await by_server(aio, keys["ada"]["key"])
    assert learned["inputs"]["prediction"]["labels"][0] > 10, "the labels count"
    assert learned["inputs"]["prediction"]["p_ok"][0] < before["inputs"]["prediction"]["p_ok"][0] - 0.2

    for name, made in keys.items():
        ours, theirs = await by_command(data, "--key", name), await by_server(aio, made["key"])
        assert (ours["tier"], ours["inputs"]["prediction"]) == (theirs["tier"], theirs["inputs"]["prediction"]), name
        assert ours["inputs"]["exclusions"] == theirs["inputs"]["exclusions"], name

    # What the server shows is what an operator deletes, and the decision is the one from before.
    [shown] = (await aio.http.get("/admin/api/outcomes/imports")).json()["rows"]
    assert (shown["import_id"], shown["labels"]) == (imported["import"], len(LANDS))
    gone = await aio.http.delete(f"/admin/api/outcomes/imports/{shown['import_id']}")
    assert gone.json() == {"import_id": shown["import_id"], "labels": len(LANDS)}
    again = await by_server(aio, keys["ada"]["key"])
    assert again["inputs"]["prediction"] == before["inputs"]["prediction"]
    assert (await by_command(data, "--key", "ada"))["inputs"]["prediction"] == before["inputs"]["prediction"]
    assert (await aio.http.delete(f"/admin/api/outcomes/imports/{shown['import_id']}")).status_code == 404
