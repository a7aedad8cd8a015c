"""A key's quality target and minimum tier: lower bounds for every request of the key."""

from typing import Any

import pytest
import pytest_asyncio

from classifier.complexity.quality_setting import QUALITY_SETTINGS
from gateway.base.configuration import load_settings
from gateway.tenancy.keys.directory import KnownKeys
from tests.gateway.operations.dashboard.browsing import browser, sign_in, submit
from tests.support.administrator import bearer
from tests.support.app import RunningGateway, StartApp
from tiers.catalog.load import load_catalog

pytestmark = pytest.mark.asyncio(loop_scope="module")
HELLO = [{"role": "user", "content": "Say hello."}]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def running(module_app: StartApp) -> RunningGateway:
    return await module_app(quality_target="economy")


@pytest.fixture
def aio(running: RunningGateway) -> RunningGateway:
    running.reset()
    return running


async def decision(aio: RunningGateway, headers: dict[str, str]) -> dict[str, Any]:
    answer = await aio.http.post("/v1/route", json={"messages": HELLO}, headers=headers)
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()["decision"]
    return found


async def target(aio: RunningGateway, headers: dict[str, str]) -> float:
    return float((await decision(aio, headers))["inputs"]["quality_target"])


async def test_the_request_goes_before_the_key_the_key_before_the_knob_and_the_knob_before_the_setting(
    aio: RunningGateway,
) -> None:
    plain, careful = bearer(await aio.key("plain")), bearer(await aio.key("careful", quality="careful"))
    assert await target(aio, plain) == QUALITY_SETTINGS["economy"]
    assert await target(aio, careful) == QUALITY_SETTINGS["careful"]
    assert await target(aio, careful | {"x-aio-quality": "0.5"}) == 0.5
    knob = {"quality_target": "balanced", "reason": "to see"}
    assert (await aio.http.patch("/v1/admin/knobs/routing", json=knob)).status_code == 200
    assert await target(aio, plain) == QUALITY_SETTINGS["balanced"]
    assert await target(aio, careful) == QUALITY_SETTINGS["careful"]
    knob = {"quality_target": None, "reason": "seen"}
    assert (await aio.http.patch("/v1/admin/knobs/routing", json=knob)).status_code == 200
    assert await target(aio, bearer(await aio.key("number", quality=0.75))) == 0.75


@pytest.mark.parametrize("wrong", ["frugal", 1.5, -0.1, True])
async def test_what_is_no_quality_is_refused_by_name(aio: RunningGateway, wrong: Any) -> None:
    of_key = await aio.http.post("/admin/api/keys", json={"name": "wrong", "terms": {"quality": wrong}})
    assert (of_key.status_code, of_key.json()["error"]["param"]) == (400, "terms.quality")
    of_knob = await aio.http.patch("/v1/admin/knobs/routing", json={"quality_target": wrong, "reason": "why"})
    assert (of_knob.status_code, of_knob.json()["error"]["param"]) == (400, "quality_target")


async def test_no_tier_below_a_keys_floor_answers_and_the_reason_says_so(aio: RunningGateway) -> None:
    key = bearer(await aio.key("floor", min_tier=3))
    chosen = await decision(aio, key)
    assert chosen["tier"] == 3
    assert (
        "not tier 1: the key asks for at least tier 3; not tier 2: the key asks for at least tier 3"
        in (chosen["reason"])
    )
    # A request may ask for more, but not for less.
    assert (await decision(aio, key | {"x-aio-min-tier": "4"}))["tier"] == 4
    assert (await decision(aio, key | {"x-aio-min-tier": "1"}))["tier"] == 3
    answer = await aio.http.post("/v1/chat/completions", json={"model": "auto", "messages": HELLO}, headers=key)
    assert answer.headers["x-aio-tier"] == "3"
    refused = await aio.http.post("/v1/chat/completions", json={"model": "tier-2", "messages": HELLO}, headers=key)
    assert (refused.status_code, refused.json()["error"]["code"]) == (403, "model_not_found")
    listed = [card["id"] for card in (await aio.http.get("/v1/models", headers=key)).json()["data"]]
    assert "tier-3" in listed
    assert "tier-2" not in listed


async def test_a_key_whose_tiers_all_lie_below_its_floor_gets_no_answer(aio: RunningGateway) -> None:
    key = bearer(await aio.key("none-left", min_tier=3, tiers=[1, 2]))
    answer = await aio.http.post("/v1/chat/completions", json={"model": "auto", "messages": HELLO}, headers=key)
    assert (answer.status_code, answer.json()["error"]["code"]) == (403, "model_not_found")


async def test_a_browser_sets_and_takes_back_both(aio: RunningGateway) -> None:
    key = bearer(await aio.key("by-form"))
    page = f"/admin/keys/{(await aio.http.get('/admin/api/keys/by-form')).json()['key']['key_id']}"
    async with browser(aio) as admin:
        await sign_in(admin)
        done = await submit(
            admin, await admin.get(page), page, scopes="inference", quality="careful", min_tier="2", reason="why"
        )
        assert done.status_code == 303, done.text
        assert (await decision(aio, key))["tier"] == 2
        assert await target(aio, key) == QUALITY_SETTINGS["careful"]
        shown = await admin.get(page)
        assert "tier-2</span></dd>" in shown.text
        await submit(admin, shown, page, scopes="inference", quality="", min_tier="", reason="why not")
    assert (await decision(aio, key))["tier"] == 1
    assert await target(aio, key) == QUALITY_SETTINGS["economy"]


async def test_a_floor_above_a_shorter_catalogue_is_its_strongest_tier() -> None:
    keys, row = KnownKeys(load_catalog("laptop"), {}), dict.fromkeys(
        ("team_id", "tiers", "models", "quality", "requests_per_minute", "tokens_per_minute", "concurrency",
         "expires_at", "paused_at", "revoked_at", "old_digest", "older_secrets",
         "aliases", "max_cost_usd_per_request")
    )  # fmt: skip
    keys.put(
        row | {"key_id": "k", "name": "n", "prefix": "p", "digest": "00", "scopes": [], "consent": True,
               "local_only": False, "priority_ceiling": 0, "min_tier": 7, "strict": False}
    )  # fmt: skip
    known = keys.newest("k")
    assert known is not None
    assert known.caller.min_tier == 4


async def test_the_server_takes_a_name_or_a_number() -> None:
    for given, wanted in (("careful", "careful"), ("0.8", 0.8), ("null", None)):
        assert load_settings({"AIO_QUALITY_TARGET": given}).quality_target == wanted
