"""A profile changes its knobs together while serving, says what it changed, and can be undone."""

import asyncio
import json
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner, Result

from gateway.base.settings import Settings
from gateway.cli import main
from gateway.inference.routing_knobs import RoutingKnobs
from gateway.runtime.cores.knob_profiles import CATALOGUE, PROFILES, Profile
from inference_core.engine.live_knobs import changed_knobs
from inference_core.protocol import Knobs
from tests.support.administrator import ADMIN_KEY, ADMIN_NAME
from tests.support.app import RunningGateway, running_gateway
from tests.support.core import laptop_hash_core
from tiers.catalog.replica_spec import BalancingSpec

pytestmark = pytest.mark.asyncio(loop_scope="module")
KNOBS, PATH = "/v1/admin/knobs/core", "/v1/admin/knobs/profiles"
INT4, BF16 = "smollm2-int4", "smollm2-bf16"


async def models(aio: RunningGateway) -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = (await aio.http.get(KNOBS)).json()["models"]
    return found


async def routing(aio: RunningGateway) -> dict[str, Any]:
    found: dict[str, Any] = (await aio.http.get("/v1/admin/knobs/routing")).json()["knobs"]
    return found


async def apply(aio: RunningGateway, name: str, **more: Any) -> list[dict[str, Any]]:
    answer = await aio.http.post(PATH, json={"profile": name, **more})
    assert answer.status_code == 200, answer.text
    changed: list[dict[str, Any]] = answer.json()["changed"]
    return changed


@pytest.mark.parametrize("profile", PROFILES.values(), ids=lambda profile: profile.name)
async def test_every_profile_names_the_same_knobs_with_allowed_values(profile: Profile) -> None:
    assert list(profile.core) == list(PROFILES[CATALOGUE].core)
    changed_knobs(Knobs(), profile.core, Knobs())
    msgspec.convert({k: v for k, v in profile.routing.items() if v is not None}, RoutingKnobs)
    msgspec.convert({k: v for k, v in profile.replicas.items() if v is not None}, BalancingSpec)


async def test_a_profile_says_from_what_to_what_each_knob_went_and_catalogue_puts_all_back(aio: RunningGateway) -> None:
    before = await models(aio), await routing(aio)
    changed = await apply(aio, "cost", reason="quiet night")
    told = {(c["model"] or c["part"], c["knob"]): (c["old_value"], c["new_value"]) for c in changed}
    wanted = {name: value for name, value in PROFILES["cost"].core.items() if value is not None}
    del wanted["max_num_seqs"]  # more than the models were started with
    assert told == {("routing", "quality_target"): (None, "economy")} | {
        (model, name): (knobs[name], value)
        for model, knobs in before[0].items()
        for name, value in wanted.items()
        if knobs[name] != value
    }
    now = await models(aio)
    assert {knobs["prefill_chunk"] for knobs in now.values()} == {2048}
    assert (await routing(aio))["quality_target"] == "economy"

    back = await apply(aio, CATALOGUE)
    assert {(c["model"] or c["part"], c["knob"]): (c["new_value"], c["old_value"]) for c in back} == told
    assert (await models(aio), await routing(aio)) == before
    assert await apply(aio, CATALOGUE) == []


async def test_nothing_of_a_former_profile_stays(aio: RunningGateway) -> None:
    await apply(aio, "latency")
    alone = await models(aio), await routing(aio)
    for name in ("cost", "tail", "throughput", "latency"):
        await apply(aio, name)
    assert (await models(aio), await routing(aio)) == alone
    await apply(aio, CATALOGUE)


async def test_every_change_is_a_row_of_the_history_with_its_author_and_the_profile(aio: RunningGateway) -> None:
    changed = await apply(aio, "tail", reason="monday")
    rows = (await aio.http.get("/v1/admin/knobs/changes", params={"limit": len(changed)})).json()["changes"]
    assert {(row["knob"], row["model"]) for row in rows} == {(c["knob"], c["model"]) for c in changed}
    assert {(row["actor"], row["reason"]) for row in rows} == {(ADMIN_NAME, "profile tail: monday")}
    await apply(aio, CATALOGUE)


async def test_the_next_steps_of_a_request_that_runs_follow_the_profile(settings: Settings) -> None:
    core = laptop_hash_core(settings)
    async with running_gateway(settings, core=core, scripted=False) as gateway:
        await gateway.http.patch(KNOBS, json={"prefill_chunk": 4, "model": INT4})

        async def chunks_of(prompt: str) -> int:
            """The steps that the prompt of one answered request took."""
            before = await steps_of(gateway)
            body = {"model": "tier-1", "max_tokens": 1, "messages": [{"role": "user", "content": prompt}]}
            assert (await gateway.http.post("/v1/chat/completions", json=body)).status_code == 200
            return await steps_of(gateway) - before

        small = await chunks_of("a prompt of some length that takes several chunks")
        stream = await gateway.openai.chat.completions.create(
            model="tier-1", messages=[{"role": "user", "content": "go on"}], max_tokens=40, stream=True
        )
        first = await anext(aiter(stream))
        await apply(gateway, "throughput")
        rest = [chunk async for chunk in stream]
        whole = await chunks_of("another one of that length that takes several chunks")

        assert first.id == rest[-1].id
        assert rest[-1].choices[0].finish_reason in ("stop", "length")
        assert (small > 1, whole) == (True, 1)


async def steps_of(gateway: RunningGateway) -> int:
    (stats,) = (await gateway.operations.core_knobs.stats()).values()
    model = next(model for model in stats.models if model.name == INT4)
    return sum(model.step_seconds_counts)


async def test_a_profile_never_exceeds_what_a_model_was_started_with(aio: RunningGateway) -> None:
    before = await models(aio)
    await apply(aio, "throughput")
    assert all(knobs["max_num_seqs"] == before[model]["max_num_seqs"] for model, knobs in (await models(aio)).items())
    assert PROFILES["throughput"].core_changes(Knobs(max_num_seqs=2000))["max_num_seqs"] == 1024
    await apply(aio, CATALOGUE)


@pytest.mark.parametrize(
    ("profile", "start", "reserved", "expected"),
    [
        ("throughput", Knobs(max_num_batched_tokens=192), False, 1024),
        ("throughput", Knobs(max_num_batched_tokens=8192), False, None),
        ("throughput", Knobs(max_num_batched_tokens=192), True, None),
    ],
    ids=["longer", "already long enough", "memory is reserved for no longer ones"],
)
async def test_steps_get_longer_within_the_memory_reserved_for_them_and_never_shorter(
    profile: str, start: Knobs, reserved: bool, expected: int | None
) -> None:
    assert PROFILES[profile].core_changes(start, reserved=reserved)["max_num_batched_tokens"] == expected


@pytest.mark.parametrize(("promised", "aimed_at"), [(100.0, 50.0), (400.0, 200.0), (60.0, 50.0), (30.0, None)])
async def test_gaps_are_tightened_to_no_less_than_half_of_what_the_tiers_promise(
    promised: float, aimed_at: float | None
) -> None:
    assert PROFILES["tail"].core_changes(Knobs(itl_objective_ms=promised))["itl_objective_ms"] == aimed_at


async def test_a_profile_that_a_core_cannot_take_changes_nothing(settings: Settings) -> None:
    core = laptop_hash_core(settings)
    async with running_gateway(settings, core=core) as gateway:
        await core.close()
        answer = await gateway.http.post(PATH, json={"profile": "cost"})
        assert (answer.status_code, answer.json()["error"]["code"]) == (503, "core_unavailable")
        assert (await routing(gateway))["quality_target"] is None


async def test_without_a_core_a_profile_changes_routing(settings: Settings) -> None:
    async with running_gateway(settings) as remote_only:
        assert [(c["part"], c["knob"]) for c in await apply(remote_only, "cost")] == [("routing", "quality_target")]


async def test_a_kept_profile_outlasts_the_core(settings: Settings) -> None:
    async with running_gateway(settings, core=laptop_hash_core(settings)) as first:
        before = await models(first)
        await apply(first, "tail", keep=True)
    async with running_gateway(settings, core=laptop_hash_core(settings)) as again:
        assert {knobs["max_waiting"] for knobs in (await models(again)).values()} == {100}
        await apply(again, CATALOGUE, keep=True)
    async with running_gateway(settings, core=laptop_hash_core(settings)) as third:
        assert await models(third) == before


@pytest.mark.parametrize("body", [{"profile": "best"}, {}, {"profile": "tail", "model": "x"}])
async def test_what_is_wrong_with_an_order_is_a_400(aio: RunningGateway, body: dict[str, Any]) -> None:
    before = await models(aio)
    assert (await aio.http.post(PATH, json=body)).status_code == 400
    assert await models(aio) == before


async def run(aio: RunningGateway, *arguments: str) -> Result:
    words = ["knobs", "profile", *arguments, "--url", aio.url, "--key", ADMIN_KEY]
    return await asyncio.to_thread(CliRunner().invoke, main, words)


async def test_the_command_prints_what_it_changed(aio: RunningGateway) -> None:
    shown = await run(aio)
    assert shown.output.splitlines()[0].split() == ["knob", *PROFILES]
    applied = await run(aio, "tail", "--reason", "complaints")
    assert applied.exit_code == 0, applied.output
    assert f"{INT4}: max_waiting 1000 -> 100" in applied.output.splitlines()
    assert f"{BF16}: max_waiting 1000 -> 100" in applied.output.splitlines()
    assert "nothing to change" in (await run(aio, "tail")).output
    back = json.loads((await run(aio, CATALOGUE, "--json")).output)
    assert (back["profile"], back["recorded"]) == (CATALOGUE, True)
    unknown = await run(aio, "best")
    assert unknown.exit_code == 1
    assert "throughput, latency, cost, tail, catalogue" in unknown.output
