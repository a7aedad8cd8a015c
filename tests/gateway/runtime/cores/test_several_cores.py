"""A gateway over several cores: every tier on its own, all figures by core; one that dies affects only its tiers."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from prometheus_client.parser import text_string_to_metric_families

from gateway.base.settings import Settings
from gateway.runtime.core_factory import chosen_core, core_title, knobs_file_of, socket_of
from gateway.runtime.cores.engine import Engine
from inference_core.engine.core import Core
from inference_core.engine.live_knobs import KnobsFile, LiveKnobs
from inference_core.errors import InvalidRequestError
from inference_core.protocol import Knobs
from inference_core.transport.core_thread import ThreadCoreClient
from inference_core.transport.listener import UnixListener
from inference_core.transport.server import CoreServer
from inference_core.transport.unix_socket import SocketCoreClient
from tests.gateway.device_catalog import CARD_MODEL, CPU_MODEL, write_catalog
from tests.inference_core.hash_model import hash_core
from tests.support.app import RunningGateway, StartApp, running_gateway
from tests.support.scripted_tier import ScriptedTier
from tiers.catalog.load import load_catalog
from tiers.errors import CatalogError

pytestmark = pytest.mark.asyncio(loop_scope="module")
KNOBS = "/v1/admin/knobs/core"
HELLO = [{"role": "user", "content": "Who computes this?"}]
MODELS = {"cpu": CPU_MODEL, "card": CARD_MODEL}


def loader(settings: Settings, name: str) -> Callable[[], Core]:
    """A core of a hash model; the card's has room for 100 sequences and 512 tokens in a step."""

    def load() -> Core:
        most = {"max_num_seqs": 100, "max_num_batched_tokens": 512} if name == "card" else {}
        live = LiveKnobs({MODELS[name]: Knobs()}, KnobsFile(knobs_file_of(settings, name)), most)
        return hash_core(MODELS[name], slabs=256, max_context=2048, vocab_size=49152, knobs=live)

    return load


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def settings(tmp_path_factory: pytest.TempPathFactory) -> Settings:
    data = tmp_path_factory.mktemp("data")
    return Settings(data_dir=str(data), catalog=str(write_catalog(data / "catalog.toml")), monitor=False)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def aio(settings: Settings, module_app: StartApp) -> RunningGateway:
    cores = {name: ThreadCoreClient(loader(settings, name), title=f"the core {name}") for name in MODELS}
    return await module_app(settings, scripted=False, cores=cores)


async def scraped(aio: RunningGateway, name: str) -> dict[tuple[str, ...], float]:
    text = (await aio.http.get("/metrics")).text
    samples = (sample for family in text_string_to_metric_families(text) for sample in family.samples)
    return {tuple(s.labels[label] for label in sorted(s.labels)): s.value for s in samples if s.name == name}


async def knob(aio: RunningGateway, name: str) -> dict[str, Any]:
    models = (await aio.http.get(KNOBS)).json()["models"]
    return {model: knobs[name] for model, knobs in models.items()}


# -- each tier on its own core ---------------------------------------------------------------------


async def test_every_tier_is_answered_by_the_core_that_has_its_model(aio: RunningGateway) -> None:
    for tier, core in ((1, "cpu"), (2, "card"), (3, "card"), (4, "cpu")):
        before = await scraped(aio, "vllm:generation_tokens_total")
        answer = await aio.ask(model=f"tier-{tier}", max_tokens=4, temperature=0)
        assert answer.status_code == 200, answer.text
        assert answer.json()["model"]
        after = await scraped(aio, "vllm:generation_tokens_total")
        grown = {labels for labels, value in after.items() if value > before.get(labels, 0)}
        assert grown == {(core, MODELS[core])}


async def test_stats_and_metrics_name_the_core(aio: RunningGateway) -> None:
    await asyncio.gather(
        aio.ask(model="tier-1", max_tokens=4, temperature=0), aio.ask(model="tier-2", max_tokens=4, temperature=0)
    )
    stats = (await aio.http.get("/v1/admin/stats")).json()
    assert [(core["name"], core["models"], core["problem"]) for core in stats["cores"]] == [
        ("cpu", [CPU_MODEL], None),
        ("card", [CARD_MODEL], None),
    ]
    assert all(core["steps"] > 0 and core["arena_bytes"] > 0 for core in stats["cores"])
    assert [tier["core"] for tier in stats["tiers"]] == ["cpu", "card", "card", "cpu"]
    assert await scraped(aio, "aio_core_up") == {("cpu",): 1.0, ("card",): 1.0}
    assert set(await scraped(aio, "aio_kv_arena_bytes")) == {(c, s) for s in ("free", "owned") for c in MODELS}


# -- knobs -----------------------------------------------------------------------------------------


async def test_knobs_are_changed_for_a_model_a_core_or_all(aio: RunningGateway) -> None:
    assert (await aio.http.get(KNOBS)).json()["cores"] == {CPU_MODEL: "cpu", CARD_MODEL: "card"}
    for body, expected in (
        ({"core": "card"}, {CPU_MODEL: 1000, CARD_MODEL: 9}),
        ({"model": CPU_MODEL}, {CPU_MODEL: 9, CARD_MODEL: 1000}),
        ({"model": CPU_MODEL, "core": "cpu"}, {CPU_MODEL: 9, CARD_MODEL: 1000}),
        ({}, {CPU_MODEL: 9, CARD_MODEL: 9}),
    ):
        answer = await aio.http.patch(KNOBS, json={"max_waiting": 9, **body})
        assert answer.status_code == 200, answer.text
        assert await knob(aio, "max_waiting") == expected
        await aio.http.patch(KNOBS, json={"max_waiting": None})
    changes = (await aio.http.get("/v1/admin/knobs/changes", params={"knob": "max_waiting"})).json()["changes"]
    assert {(change["part"], change["model"]) for change in changes} == {
        ("core", CPU_MODEL),
        ("core card", CARD_MODEL),
    }


async def test_a_change_that_one_core_refuses_changes_none(aio: RunningGateway) -> None:
    answer = await aio.http.patch(KNOBS, json={"max_num_seqs": 101, "threads": 1, "keep": True})
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "max_num_seqs"
    assert "this core was loaded with room for 100" in answer.json()["error"]["message"]
    assert await knob(aio, "max_num_seqs") == {CPU_MODEL: 64, CARD_MODEL: 64}
    assert await knob(aio, "threads") == {CPU_MODEL: 0, CARD_MODEL: 0}


async def test_a_profile_that_one_core_refuses_changes_neither_a_core_nor_routing(
    aio: RunningGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def refuse(*args: object, **options: object) -> None:
        raise InvalidRequestError("not today", "max_waiting")

    before = (await aio.http.get(KNOBS)).json(), (await aio.http.get("/v1/admin/knobs/routing")).json()["knobs"]
    monkeypatch.setattr(aio.operations.core_knobs.cores["card"], "set_knobs", refuse)
    refused = await aio.http.post("/v1/admin/knobs/profiles", json={"profile": "cost"})
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "max_waiting")
    after = (await aio.http.get(KNOBS)).json(), (await aio.http.get("/v1/admin/knobs/routing")).json()["knobs"]
    assert after == before
    changes = (await aio.http.get("/v1/admin/knobs/changes")).json()["changes"]
    assert {c["knob"] for c in changes if (c["reason"] or "").endswith("a part of it was refused")} >= {
        "prefill_chunk",
        "quality_target",
    }


async def test_a_profile_leaves_steps_as_long_as_a_card_has_memory_for(aio: RunningGateway) -> None:
    path = "/v1/admin/knobs/profiles"
    assert (await aio.http.post(path, json={"profile": "throughput"})).status_code == 200
    assert await knob(aio, "max_num_batched_tokens") == {CPU_MODEL: 1024, CARD_MODEL: 512}
    assert (await aio.http.post(path, json={"profile": "catalogue"})).status_code == 200
    assert await knob(aio, "max_num_batched_tokens") == {CPU_MODEL: 512, CARD_MODEL: 512}


async def test_every_core_keeps_its_knobs_in_a_file_of_its_own(aio: RunningGateway, settings: Settings) -> None:
    assert (await aio.http.patch(KNOBS, json={"max_waiting": 77, "keep": True})).status_code == 200
    kept = {name: LiveKnobs({MODELS[name]: Knobs()}, KnobsFile(knobs_file_of(settings, name))) for name in MODELS}
    assert [live.of(MODELS[name]).max_waiting for name, live in kept.items()] == [77, 77]
    await aio.http.patch(KNOBS, json={"max_waiting": None, "keep": True})


@pytest.mark.parametrize(
    ("body", "param", "said"),
    [
        ({"core": "tpu"}, "core", "there are cpu, card"),
        ({"core": "cpu", "model": CARD_MODEL}, "model", f"loaded: {CPU_MODEL}"),
        ({"model": "gpt"}, "model", f"loaded: {CPU_MODEL}, {CARD_MODEL}"),
    ],
)
async def test_an_unknown_core_or_model_is_named(
    aio: RunningGateway, body: dict[str, str], param: str, said: str
) -> None:
    answer = await aio.http.patch(KNOBS, json={"max_waiting": 5, **body})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)
    assert said in answer.json()["error"]["message"]


# -- which core a process is -----------------------------------------------------------------------


async def test_sockets_and_knob_files_of_groups_are_next_to_those_of_the_cpu_core() -> None:
    settings = Settings(data_dir="/d")
    assert (socket_of(settings, "cpu"), socket_of(settings, "card")) == (
        Path("/d/core.sock"),
        Path("/d/core.card.sock"),
    )
    assert knobs_file_of(settings, "cpu") == Path("/d/knobs.json")
    assert socket_of(Settings(core_socket="/run/aio"), "card") == Path("/run/aio.card")


async def test_a_core_process_must_say_which_of_several_cores_it_is(settings: Settings) -> None:
    catalog, laptop = load_catalog(settings.catalog), load_catalog("laptop")
    assert (chosen_core(catalog, "card"), chosen_core(laptop, None)) == ("card", "cpu")
    for group, said in ((None, "choose one with --group: cpu, card"), ("tpu", "its cores are cpu, card")):
        with pytest.raises(CatalogError, match=said):
            chosen_core(catalog, group)
    assert [core_title(c, "cpu") for c in (laptop, catalog)] == ["the core", "the core cpu"]


@asynccontextmanager
async def gateway_of_listening_cores(settings: Settings) -> AsyncIterator[tuple[RunningGateway, dict[str, CoreServer]]]:
    """A gateway without models, and the servers of its cores by name."""
    apart = Settings(data_dir=settings.data_dir, catalog=settings.catalog, monitor=False, role="gateway")
    servers = {name: CoreServer(loader(settings, name), UnixListener(socket_of(apart, name))) for name in MODELS}
    for server in servers.values():
        await server.start()
    cores = {name: SocketCoreClient(socket_of(apart, name)) for name in MODELS}
    async with running_gateway(apart, scripted=False, cores=cores) as aio:
        yield aio, servers
    for server in servers.values():
        await server.stop()


async def test_a_gateway_that_takes_anothers_place_answers_its_first_request(settings: Settings) -> None:
    async with gateway_of_listening_cores(settings) as (aio, _):
        for model in ("tier-1", "tier-2"):
            assert (await aio.ask(model=model, max_tokens=4, temperature=0)).status_code == 200


# -- one of them dies ------------------------------------------------------------------------------


async def test_a_core_that_goes_takes_only_its_tiers_with_it_until_it_is_back(settings: Settings) -> None:
    async with gateway_of_listening_cores(settings) as (aio, servers):
        assert (await until(aio, "ok"))["status_code"] == 200
        before = (await aio.ask(model="tier-2", max_tokens=4, temperature=0)).json()["choices"]

        await servers["card"].stop()
        shown = await until(aio, "degraded", "tiers")
        assert shown["status_code"] == 200
        assert shown["problems"]["tiers"] == "these take no requests: 2, 3"
        assert "core" not in shown["problems"]
        assert (await aio.ask(model="tier-2", max_tokens=4, temperature=0)).status_code == 503
        for model in ("tier-1", "tier-4", "auto"):
            assert (await aio.ask(model=model, max_tokens=4, temperature=0)).status_code == 200
        stats = (await aio.http.get("/v1/admin/stats")).json()
        assert [bool(core["problem"]) for core in stats["cores"]] == [False, True]
        assert [tier["healthy"] for tier in stats["tiers"]] == [True, False, False, True]
        assert await scraped(aio, "aio_core_up") == {("cpu",): 1.0, ("card",): 0.0}
        refused = await aio.http.patch(KNOBS, json={"max_waiting": 5})
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "core_unavailable")
        assert await knob(aio, "max_waiting") == {CPU_MODEL: 1000}

        servers["card"] = CoreServer(loader(settings, "card"), UnixListener(socket_of(settings, "card")))
        await servers["card"].start()
        await until(aio, "ok")
        assert (await aio.ask(model="tier-2", max_tokens=4, temperature=0)).json()["choices"] == before


async def until(aio: RunningGateway, status: str, problem: str | None = None) -> dict[str, Any]:
    """What `/health/ready` says as soon as it says `status` (and names `problem`)."""
    while True:
        answer = await aio.http.get("/health/ready")
        shown: dict[str, Any] = answer.json()
        if shown["status"] == status and (problem is None or problem in shown.get("problems", {})):
            return shown | {"status_code": answer.status_code}


async def test_tiers_elsewhere_serve_while_no_core_is_there(settings: Settings) -> None:
    apart = Settings(data_dir=settings.data_dir, catalog=settings.catalog, monitor=False, role="gateway")
    remote = ScriptedTier(1, model="big")
    engine = Engine([remote], {"cpu": SocketCoreClient(socket_of(apart, "missing"))})
    starting = asyncio.create_task(engine.stay_connected("cpu", asyncio.Event()))
    async with engine.starting_elsewhere():
        while "no core listens" not in engine.away.get("core", ""):  # noqa: ASYNC110 - a dict has no event
            await asyncio.sleep(0)
        assert remote.started
    starting.cancel()
    await engine.close()
