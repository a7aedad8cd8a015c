"""Where routing does not pay: said everywhere, acted on only where the knob says so, audited, and taken back."""

import asyncio
import re
import time
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest
import pytest_asyncio
from click.testing import CliRunner
from sqlalchemy import delete, insert, select

from gateway.cli import main
from gateway.operations.constant_tier import CHANGED
from migrations.tables.audit import audit_events
from migrations.tables.quality import training_rows
from migrations.tables.requests import requests
from quality.records.record import Record
from quality.store.queries import insert_records
from tests.gateway.operations.dashboard.browsing import browser, sign_in
from tests.quality.loop_world import record
from tests.support.app import RunningGateway, StartApp
from tests.support.served import UNCACHED

pytestmark = pytest.mark.asyncio(loop_scope="module")
KNOBS = "/v1/admin/knobs/routing"
SAYS_NOT = "Routing does not pay here"


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def aio(module_app: StartApp) -> RunningGateway:
    """Without a monitor, so that the probes are those of the test alone."""
    return await module_app()


@pytest_asyncio.fixture(autouse=True, loop_scope="module")
async def _clean(aio: RunningGateway) -> AsyncIterator[None]:
    yield
    await aio.http.patch(KNOBS, json={"constant": "propose", "reason": "test"})
    async with aio.serving.database.begin() as connection:
        for table in (training_rows, requests, audit_events):
            await connection.execute(delete(table))
    await aio.operations.constant.renew()
    aio.operations.constant._record._of = ()


def routed_to(tier: int, name: str, key: str | None) -> Record:
    """A request that routing gives to `tier`, at costs of 1 to 4."""
    made = record(name, tier=tier, key_id=key)
    p_ok = [0.99 if k >= tier else 0.1 for k in range(1, 5)]
    prediction = msgspec.structs.replace(made.decision.inputs.prediction, p_ok=p_ok)
    inputs = msgspec.structs.replace(made.decision.inputs, prediction=prediction)
    return msgspec.structs.replace(made, decision=msgspec.structs.replace(made.decision, inputs=inputs))


async def probed(
    aio: RunningGateway, count: int, tier: int, no_worse: list[bool], key: str | None = None, name: str = "p"
) -> None:
    """Requests that routing gave to `tier`, and all tiers answered."""
    names = [f"{name}{number}" for number in range(count)]
    row = {
        "source": "probe", "feature_spec": "f", "embedding": b"", "no_worse": no_worse, "weights": [1.0] * 4,
        "tiers": aio.serving.routing.served.catalog.tier_fingerprints, "created_at": time.time(), "key_id": key,
    }  # fmt: skip
    async with aio.serving.database.begin() as connection:
        await insert_records(connection, [routed_to(tier, name, key) for name in names])
        await connection.execute(insert(training_rows), [row | {"request_id": name} for name in names])


async def knob(aio: RunningGateway, value: str) -> None:
    answer = await aio.http.patch(KNOBS, json={"constant": value, "reason": "routing does not pay"})
    assert answer.status_code == 200, answer.text
    await aio.operations.constant.look()


async def asked(aio: RunningGateway, **headers: str) -> tuple[str, str]:
    """The tier that answers, and the reason."""
    answer = await aio.ask("Which fruit is red?", headers=UNCACHED | headers)
    assert answer.status_code == 200, answer.text
    return answer.headers["x-aio-tier"], answer.json()["x_aio"]["reason"]


async def trail(aio: RunningGateway) -> list[tuple[str, Any]]:
    row = audit_events.c
    async with aio.serving.database.connect() as connection:
        query = select(row.subject, row.details).where(row.action == CHANGED).order_by(row.audit_event_id)
        return [(subject, details["tier"]) for subject, details in await connection.execute(query)]


# Routing takes tier 3, and tier 2 is as good: the constant is tier 2 where tier 1 is not good enough.
SECOND_SUFFICES = [False, True, True, True]


async def worth_of(aio: RunningGateway) -> dict[str, Any]:
    found: dict[str, Any] = (await aio.http.get("/admin/api/report")).json()["worth"]
    return found


async def test_propose_says_so_everywhere_and_changes_nothing(aio: RunningGateway) -> None:
    await probed(aio, 600, 3, SECOND_SUFFICES)

    await knob(aio, "propose")

    assert (await asked(aio))[0] == "1"
    assert await trail(aio) == []
    shown = await worth_of(aio)
    assert shown["worth"]["catalogue"]["verdict"] == "does_not_pay"
    assert shown["worth"]["catalogue"]["constant"]["tier"] == 2
    sentence = shown["sentences"][0]
    assert sentence.startswith(SAYS_NOT)
    assert "constant=act lets it answer" in sentence
    metrics = (await aio.http.get("/metrics")).text
    assert 'aio_routing_pays{verdict="does_not_pay"} 1.0' in metrics
    assert 'aio_routing_pays{verdict="pays"} 0.0' in metrics


async def test_act_lets_the_constant_answer_with_its_reason_and_takes_it_back_with_the_knob(
    aio: RunningGateway,
) -> None:
    await probed(aio, 600, 3, SECOND_SUFFICES)

    await knob(aio, "act")
    tier, reason = await asked(aio)
    dearer, _ = await asked(aio, **{"x-aio-quality": "0.99"})
    await knob(aio, "off")
    after, _ = await asked(aio)

    assert tier == "2"
    assert reason.startswith("constant: tier 2 answers, because routing does not pay here")
    # The constant is not known to meet so much: routing decides.
    assert dearer == "1"
    assert after == "1"
    assert await trail(aio) == [("catalogue", 2), ("catalogue", None)]


async def test_the_knob_takes_effect_before_the_next_look(aio: RunningGateway) -> None:
    await probed(aio, 600, 3, SECOND_SUFFICES)
    await knob(aio, "act")

    await aio.http.patch(KNOBS, json={"constant": "propose", "reason": "stop"})

    assert (await asked(aio))[0] == "1"


async def test_a_look_writes_no_second_row_for_what_has_not_changed(aio: RunningGateway) -> None:
    await probed(aio, 600, 3, SECOND_SUFFICES)
    await knob(aio, "act")

    await aio.operations.constant.look()

    assert await trail(aio) == [("catalogue", 2)]


async def test_probes_that_contradict_let_routing_decide_again(aio: RunningGateway) -> None:
    await probed(aio, 600, 3, SECOND_SUFFICES)
    await knob(aio, "act")

    # From now on tier 1 or nothing but tier 4 is good enough, and routing knows which.
    await probed(aio, 900, 1, [True, True, True, True], name="easy")
    await probed(aio, 900, 4, [False, False, False, True], name="hard")
    await aio.operations.constant.look()

    assert (await asked(aio))[0] == "1"
    assert (await trail(aio))[-1] == ("catalogue", None)


async def test_a_constant_that_costs_more_than_routing_never_acts(aio: RunningGateway) -> None:
    # Routing takes tier 1, which is bad: every other tier is better and dearer.
    await probed(aio, 600, 1, SECOND_SUFFICES)

    await knob(aio, "act")

    assert (await worth_of(aio))["worth"]["catalogue"]["verdict"] == "does_not_pay"
    assert (await asked(aio))[0] == "1"
    assert "so none is proposed" in (await worth_of(aio))["sentences"][0]
    assert await trail(aio) == []


async def test_a_key_whose_routing_pays_keeps_it_where_the_catalogue_has_a_constant(aio: RunningGateway) -> None:
    await probed(aio, 3000, 3, SECOND_SUFFICES)
    # For most of alice's requests tier 1 is enough, and routing knows for which.
    await probed(aio, 900, 1, [True, True, True, True], key="alice", name="easy")
    await probed(aio, 100, 2, SECOND_SUFFICES, key="alice", name="hard")

    await knob(aio, "act")

    constants = aio.serving.routing.constants
    assert constants["alice"] is None
    whole = constants[None]
    assert whole is not None
    assert whole.tier == 2


async def test_the_dashboard_and_the_command_say_the_same(aio: RunningGateway) -> None:
    await probed(aio, 600, 3, SECOND_SUFFICES)
    await aio.operations.constant.look()

    async with browser(aio) as admin:
        await sign_in(admin)
        pages = [(await admin.get(path)).text for path in ("/admin", "/admin/routing")]
    folder = aio.serving.settings.data_dir
    catalog = aio.serving.settings.catalog
    order = ["report", "--data-dir", folder, "--catalog", catalog]
    said = await asyncio.to_thread(CliRunner().invoke, main, order)

    assert all(SAYS_NOT in page for page in pages)
    assert said.exit_code == 0, said.output
    assert f"Does it pay?\n\n{SAYS_NOT}" in said.output


async def test_the_overview_and_the_report_say_the_same_number_of_missing_probes(aio: RunningGateway) -> None:
    await probed(aio, 20, 3, SECOND_SUFFICES)
    await aio.operations.constant.look()
    # Those that came since the last look.
    await probed(aio, 20, 3, [True, True, True, True], name="later")

    async with browser(aio) as admin:
        await sign_in(admin)
        pages = [(await admin.get(path)).text for path in ("/admin", "/admin/routing")]
        patched = await aio.http.patch(KNOBS, json={"quality_target": 0.5, "reason": "cheaper"})
        assert patched.status_code == 200, patched.text
        again = [(await admin.get(path)).text for path in ("/admin/routing", "/admin")]

    said = [set(re.findall(r"about ([\d,]+) more", page)) for page in (*pages, *again)]
    assert said[0] == said[1]
    assert said[2] == said[3]
    assert all(len(one) == 1 for one in said)


async def test_the_verdict_is_logged_at_first_and_weekly(
    aio: RunningGateway, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    constant, now = aio.operations.constant, [0.0]
    monkeypatch.setattr(constant, "_clock", lambda: now[0])
    monkeypatch.setattr(constant, "_logged_at", None)
    with caplog.at_level("INFO", "gateway.operations.constant_tier"):
        for at in (0.0, 6 * 86_400.0, 7 * 86_400.0, 8 * 86_400.0):
            now[0] = at
            await constant.look()

    assert [one.getMessage().startswith("Whether routing pays here") for one in caplog.records] == [True, True]
