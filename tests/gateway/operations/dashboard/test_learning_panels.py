"""What a manager reads: traffic, savings, what was learned; figures as in the database."""

import html
import re
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import httpx
import pytest
import pytest_asyncio
from sqlalchemy import insert

from classifier.complexity.classes import Complexity
from classifier.decision import Decision, PolicyInputs, Prediction
from gateway.admin.routing_reports import active_version
from gateway.base.settings import Settings
from gateway.inference.classifier_versions import ActiveClassifier
from migrations.tables.quality import training_rows, verifications
from migrations.tables.requests import routing_decisions
from migrations.tables.tenancy import api_keys
from quality.verification.training_rows import encode_prompt
from tests.gateway.operations.dashboard.browsing import browser, sign_in
from tests.gateway.operations.dashboard.rows import insert_requests
from tests.gateway.running_gateway import RunningGateway, running_gateway
from tests.polling import eventually

pytestmark = pytest.mark.asyncio(loop_scope="module")
ROUTING, QUALITY, API = "/admin/routing", "/admin/quality", "/admin/api"
COSTS = [0.001, 0.002, 0.004, 0.01]
FRUIT = ("apple", "pear", "plum", "cherry", "quince", "lemon")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def aio(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[RunningGateway]:
    """The packaged classifier; no request yet."""
    async with serving(Settings(data_dir=str(tmp_path_factory.mktemp("data")), monitor=False)) as running:
        yield running


@asynccontextmanager
async def serving(settings: Settings) -> AsyncIterator[RunningGateway]:
    async with running_gateway(settings) as running:
        classifier = ActiveClassifier(settings.registry_path, running.serving.routing.served.catalog.fingerprint)
        classifier.load()
        running.serving.routing.classifier = classifier
        yield running


def classes_of(complexity: Complexity) -> list[float]:
    return [0.97 if one == complexity else 0.01 for one in Complexity]


async def routed(
    aio: RunningGateway, name: str, tier: int, complexity: Complexity, *, key: str | None = "k1", turn: str = ""
) -> None:
    """A request that tier `tier` answered for its cost, a thousand times."""
    prediction = Prediction(
        p_ok=[0.9, 0.95, 0.97, 1.0], kind="prior", novelty=1.0, classifier_version="v", classes=classes_of(complexity)
    )
    inputs = PolicyInputs(prediction=prediction, costs=COSTS, quality_target=0.7, tau=0.7)
    row = {"request_id": name, "created_at": time.time()}
    messages = [{"role": "user", "content": turn}] if turn else None
    request = row | {
        "tier": tier, "key_id": key, "messages": messages, "cost_usd": 1000 * COSTS[tier - 1],
        "baseline_cost_usd": 10.0,
    }  # fmt: skip
    decision = {
        "tier": tier, "classifier_version": "v", "prediction_kind": "prior", "novelty": 1.0,
        "decision": Decision(tier=tier, reason="r", scores=[], inputs=inputs),
    }  # fmt: skip
    await insert_requests(aio.serving.database, request)
    async with aio.serving.database.begin() as connection:
        await connection.execute(insert(routing_decisions), [decision | row])


async def labelled(aio: RunningGateway, names: Sequence[str], key: str, complexity: Complexity, *, good: bool) -> None:
    """Labels of all tiers for prompts of one class."""
    model, now = active_version(aio.serving).model, time.time()
    rows = []
    for number, name in enumerate(names):
        encoded = encode_prompt(model, [{"role": "user", "content": f"Which fruit is {name}?"}])
        rows.append(
            {"request_id": name, "key_id": key, "source": "probe", "feature_spec": encoded.feature_spec,
             "embedding": encoded.embedding, "features": encoded.features, "no_worse": [good, True, True, True],
             "weights": [1.0] * 4, "classes": classes_of(complexity), "created_at": now + number}
        )  # fmt: skip
    async with aio.serving.database.begin() as connection:
        await connection.execute(insert(training_rows), rows)


async def judged(aio: RunningGateway, name: str, tier: int, label: str) -> None:
    now = time.time()
    row = {
        "request_id": name, "tier": tier, "model": "m", "sampled_probability": 0.05, "sampled_reason": "sample",
        "status": "done", "judge": "exact", "label": label, "cost_usd": 0.0, "reserved_usd": 0.0, "attempts": 1,
        "created_at": now, "finished_at": now,
    }  # fmt: skip
    async with aio.serving.database.begin() as connection:
        await connection.execute(insert(verifications), [row])


def text_of(page: httpx.Response) -> str:
    """The visible text, on one line."""
    assert page.status_code == 200, page.text
    return html.unescape(re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", page.text)))


def rows_of(page: httpx.Response, region: str) -> list[list[str]]:
    """The cells of the body of a page's table."""
    table = page.text.partition(f'aria-label="{region}"')[2].partition("</table>")[0]
    body = table.partition("<tbody>")[2].partition("</tbody>")[0]
    cells = [re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", row, re.DOTALL) for row in body.split("</tr>")]
    return [[re.sub(r"\s+", " ", re.sub(r"<[^>]+>", "", cell)).strip() for cell in row] for row in cells if row]


async def learned_page(admin: httpx.AsyncClient) -> httpx.Response:
    """The quality page once its curve has been computed."""
    page = await admin.get(QUALITY)

    async def drawn() -> bool:
        nonlocal page
        page = await admin.get(QUALITY)
        return "The learning curve is not ready" not in page.text

    await eventually(drawn)
    return page


async def test_before_any_request_the_pages_say_what_is_not_measured(admin: httpx.AsyncClient) -> None:
    routing, quality = text_of(await admin.get(ROUTING)), text_of(await learned_page(admin))
    assert "Nothing was routed yet." in routing
    assert "not measured yet: 0 verified answers" in routing
    assert "No kind has a verified answer yet." in routing
    assert "0 labels: routing uses the general estimates that AIO ships with" in quality


async def test_the_routing_page_says_what_was_asked_what_answered_and_what_it_saved(
    aio: RunningGateway, admin: httpx.AsyncClient
) -> None:
    async with aio.serving.database.begin() as connection:
        key = {
            "key_id": "k1", "name": "support desk", "prefix": "p", "digest": "d", "scopes": [], "consent": True,
            "priority_ceiling": 1, "created_at": 1.0,
        }  # fmt: skip
        await connection.execute(insert(api_keys).values(key))
    for number in range(8):
        await routed(aio, f"s{number}", 1, Complexity.SIMPLE, turn=f"Which orchard grows {FRUIT[number % 6]} {number}?")
    for number in range(2):
        await routed(aio, f"e{number}", 4, Complexity.EXPERT)

    page = await admin.get(ROUTING)
    said = text_of(page)

    assert (
        "Of the last 10 requests, 80% were answered by tier 1. That cost $28.00; always tier 4 would have cost "
        "$100.00: 72% less [" in said
    )
    assert "By difficulty they are 80% SIMPLE and 20% EXPERT." in said
    assert "92% of the answers are expected to be as good as tier 4's. That is not measured yet (0 verified" in said
    table = rows_of(page, "Requests by class and tier")
    assert [row[:7] for row in table] == [
        ["SIMPLE", "8", "80.0%", "8", "0", "0", "0"], ["MEDIUM", "0", "0.0%", "0", "0", "0", "0"],
        ["COMPLEX", "0", "0.0%", "0", "0", "0", "0"], ["EXPERT", "2", "20.0%", "0", "0", "0", "2"],
    ]  # fmt: skip
    assert table[0][7] == "grows, orchard"
    shown = (await admin.get(f"{API}/routing/traffic")).json()
    assert (shown["traffic"]["tiers"], shown["labels"], shown["verified"]) == ([8, 0, 0, 2], 0, None)


async def test_kinds_of_prompts_have_names_and_what_was_verified_of_them(
    aio: RunningGateway, admin: httpx.AsyncClient
) -> None:
    for number in range(8):
        await judged(aio, f"s{number}", 1, "worse" if number < 2 else "tie")
    await labelled(aio, [f"s{number}" for number in range(8)], "k1", Complexity.SIMPLE, good=False)
    aio.operations.kind_names._read_at = float("-inf")

    page = await admin.get(ROUTING)

    assert "cluster" not in page.text.lower()
    simple, application = rows_of(page, "Kinds of prompts")
    assert simple[0] == "SIMPLE prompts: short questions (grows, orchard)"
    assert application[0].startswith("support desk, no system prompt: short questions")
    assert simple[1] == application[1] == "75.0%"
    assert simple[3] == "8"
    assert "Verified on a sample of 8 answers: 75% [41%, 93%] were as good." in text_of(page)
    rows = (await admin.get(f"{API}/routing/kinds")).json()["rows"]
    assert next((row["name"], row["answers"]) for row in rows if row["complexity"] == "SIMPLE") == (simple[0], 8)


async def test_the_quality_page_says_how_many_labels_there_are_and_what_they_changed(
    aio: RunningGateway, admin: httpx.AsyncClient
) -> None:
    await labelled(aio, [f"l{number}" for number in range(29)], "k1", Complexity.SIMPLE, good=False)
    await labelled(aio, ["other"], "k2", Complexity.SIMPLE, good=True)
    aio.operations.learning._drawn_at = float("-inf")
    shown = (await admin.get(f"{API}/learning")).json()

    page = await learned_page(admin)
    said = text_of(page)

    assert "support desk: 37 of 100 labels; from about 100 on, the key has its own model." in said
    assert "On its 12 newest labels, the prediction error fell from" in said
    labels = {row[0]: row[1] for row in rows_of(page, "Labels by key")}
    assert labels == {"all keys together": "38", "support desk": "37", "k2": "1"}
    curve = [row for row in rows_of(page, "Learning curve") if row[0] == "support desk"]
    [mine] = [one for one in shown["keys"] if one["key_id"] == "k1"]
    assert [int(row[1]) for row in curve] == [point["labels"] for point in mine["curve"]["points"]] == [0, 25]
    assert [float(row[2]) for row in curve] == [round(p["error"]["value"], 3) for p in mine["curve"]["points"]]
    assert float(curve[1][2]) < float(curve[0][2])
    assert page.text.count('<figure class="chart">') == 2
    sheet = await admin.get(f"{API}/learning?format=csv")
    assert "support desk" in sheet.text


async def test_a_page_does_not_wait_for_the_learning_curve(
    admin: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gateway.admin.quality.WAIT_SECONDS", 0.0)
    assert "What was learned" in text_of(await admin.get(QUALITY))


async def test_a_gateway_that_stops_ends_the_drawing_of_its_curve(tmp_path_factory: pytest.TempPathFactory) -> None:
    async with serving(Settings(data_dir=str(tmp_path_factory.mktemp("data")), monitor=False)) as aio:
        async with browser(aio) as client:
            await sign_in(client)
            await client.get(QUALITY)
        learning = aio.operations.learning
    assert learning._running is not None
    assert learning._running.done()
