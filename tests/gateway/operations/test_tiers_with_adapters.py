"""Tiers of one loaded model that differ by their adapter alone: served, named, cached and reloaded (SPEC TI-10)."""

import asyncio
import json
from pathlib import Path
from typing import Any

import httpx
import pytest
import pytest_asyncio
from click.testing import CliRunner

from benchmarks.core.random_adapter import write_random_adapter
from gateway.cli import main
from tests.gateway.tiny_versions import ASKED, Versions
from tests.inference_core.quantization.tiny_model import tiny_config
from tests.support.app import RunningGateway, StartApp
from tests.support.served import UNCACHED

pytestmark = pytest.mark.asyncio(loop_scope="module")


class Adapted(Versions):
    """The tiny catalogue, whose tiers may bind three adapters: "maths", "law", and "wide", which fits no model."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        config = tiny_config(self.model("old"))
        for seed, name in enumerate(("maths", "law")):
            write_random_adapter(self.adapter(name), config, rank=2, seed=seed, strength=1.0)
        settings = json.loads((self.adapter("law") / "adapter_config.json").read_text())
        write_random_adapter(self.adapter("wide"), config, rank=4)
        (self.adapter("wide") / "adapter_config.json").write_text(json.dumps(settings))

    def adapter(self, name: str) -> Path:
        return self.file.parent / "adapters" / name

    def bind(self, **adapters: str) -> None:
        """Write the catalogue with these adapters, by the tier's name with "_" for "-"."""
        text = self.text("old")
        for tier, name in adapters.items():
            entry = f'name = "{tier.replace("_", "-")}"\n'
            text = text.replace(entry, f'{entry}adapter = "{self.adapter(name)}"\n')
        self.file.write_text(text)


@pytest.fixture(scope="module")
def adapted(tmp_path_factory: pytest.TempPathFactory) -> Adapted:
    return Adapted(tmp_path_factory.mktemp("adapted"))


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def serving(adapted: Adapted, tmp_path_factory: pytest.TempPathFactory, module_app: StartApp) -> RunningGateway:
    adapted.bind(tier_2="maths", tier_3="law")
    folder = str(tmp_path_factory.mktemp("data"))
    return await module_app(scripted=False, data_dir=folder, cache_dir=folder, catalog=str(adapted.file))


@pytest_asyncio.fixture(loop_scope="module")
async def aio(serving: RunningGateway, adapted: Adapted) -> RunningGateway:
    """Tier 2 binds "maths", tier 3 "law"; the others are the model alone."""
    adapted.bind(tier_2="maths", tier_3="law")
    assert (await reload(serving)).status_code == 200
    return serving


async def reload(aio: RunningGateway) -> httpx.Response:
    return await aio.http.post("/v1/admin/reload", json={"reason": "another adapter"})


async def said(aio: RunningGateway, model: str, headers: dict[str, str] | None = None) -> str:
    wanted = UNCACHED if headers is None else headers
    answer = await aio.http.post("/v1/completions", json=ASKED | {"model": model}, headers=wanted)
    assert answer.status_code == 200, answer.text
    text: str = answer.json()["choices"][0]["text"]
    return text


async def loaded(aio: RunningGateway) -> dict[str, Any]:
    models: dict[str, Any] = (await aio.http.get("/v1/admin/adapters")).json()["models"]
    return {name: sorted(info["name"] for info in model["adapters"]) for name, model in models.items()}


async def test_tiers_of_one_model_answer_by_their_own_adapter(aio: RunningGateway) -> None:
    plain, maths, law, plain_too = [await said(aio, f"tier-{number}") for number in (1, 2, 3, 4)]
    assert plain == plain_too
    assert len({plain, maths, law}) == 3
    assert await loaded(aio) == {"tiny": ["law", "maths"]}
    assert [await said(aio, f"tier-1:{name}") for name in ("maths", "law")] == [maths, law]
    assert await said(aio, "tier-2:law") == law


async def test_a_model_with_its_adapter_is_a_name_of_the_tier(aio: RunningGateway) -> None:
    cards = {card["id"]: card["x_aio"] for card in (await aio.http.get("/v1/models")).json()["data"]}
    assert [(tier["tier"], tier["adapter"]) for tier in cards["tiny:law"]] == [(3, "law")]
    assert [(tier["tier"], tier["adapter"]) for tier in cards["tiny"]] == [(1, None)]
    assert await said(aio, "tiny:maths") == await said(aio, "tier-2")
    assert await said(aio, "tiny") == await said(aio, "tier-1")


async def test_a_reload_with_another_adapter_changes_that_tier_alone(aio: RunningGateway, adapted: Adapted) -> None:
    plain, maths, law = [await said(aio, f"tier-{number}") for number in (1, 2, 3)]
    adapted.bind(tier_2="law", tier_3="law")
    swapped = await reload(aio)
    assert swapped.status_code == 200, swapped.text
    assert (swapped.json()["tiers"], swapped.json()["loaded"]) == ([2], ["tiny"])
    assert [await said(aio, f"tier-{number}") for number in (1, 2, 3)] == [plain, law, law]
    assert await loaded(aio) == {"tiny": ["law"]}
    assert maths != law


async def test_a_reload_that_exchanges_the_adapters_of_two_tiers_loads_no_core(
    aio: RunningGateway, adapted: Adapted
) -> None:
    maths, law = [await said(aio, f"tier-{number}") for number in (2, 3)]
    adapted.bind(tier_2="law", tier_3="maths")
    swapped = (await reload(aio)).json()
    assert (swapped["tiers"], swapped["loaded"]) == ([2, 3], [])
    assert [await said(aio, f"tier-{number}") for number in (2, 3)] == [law, maths]


async def test_no_answer_of_an_adapter_is_kept_for_other_weights(aio: RunningGateway, adapted: Adapted) -> None:
    kept = await said(aio, "tier-2", {})
    before = [tier.weights for tier in aio.serving.routing.served.tiers.values()]
    adapted.adapter("maths").rename(adapted.adapter("replaced"))
    config = tiny_config(adapted.model("old"))
    write_random_adapter(adapted.adapter("maths"), config, rank=2, seed=9, strength=1.0)
    # The same path holds other weights, and the core is loaded again for another reason.
    text = adapted.file.read_text()
    adapted.file.write_text(text.replace('compute = "float32"', 'compute = "float32"\nmax_adapters = 4'))
    assert (await reload(aio)).status_code == 200
    after = [tier.weights for tier in aio.serving.routing.served.tiers.values()]
    assert [one == other for one, other in zip(before, after, strict=True)] == [True, False, True, True]
    assert await said(aio, "tier-2", {}) == await said(aio, "tier-2") != kept


async def test_an_adapter_that_does_not_fit_is_refused_and_the_old_one_serves_on(
    aio: RunningGateway, adapted: Adapted
) -> None:
    before = await said(aio, "tier-2")
    adapted.bind(tier_2="wide", tier_3="law")
    refused = await reload(aio)
    assert (refused.status_code, refused.json()["error"]["code"]) == (409, "catalogue_refused")
    assert "by adapter_config.json and the model it is [2, " in refused.json()["error"]["message"]
    assert await said(aio, "tier-2") == before


async def test_a_bound_adapter_is_not_unloaded_over_http(aio: RunningGateway) -> None:
    refused = await aio.http.delete("/v1/admin/adapters/tiny/law")
    assert (refused.status_code, refused.json()["error"]["code"]) == (409, "adapter_bound")
    assert "'law' belongs to tier-3 in the catalogue" in refused.json()["error"]["message"]
    assert await loaded(aio) == {"tiny": ["law", "maths"]}


async def test_aio_check_names_the_adapter(adapted: Adapted, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIO_CORE_PROCESS", "false")
    adapted.bind(tier_2="maths")
    folders = ["--data-dir", str(tmp_path), "--cache-dir", str(tmp_path)]
    shown = await asyncio.to_thread(
        CliRunner().invoke, main, ["check", "--catalog", str(adapted.file), *folders, "--json"]
    )
    assert [answer["model"] for answer in json.loads(shown.stdout)] == ["tiny", "tiny:maths", "tiny", "tiny"]
    adapted.bind(tier_2="wide")
    shown = await asyncio.to_thread(CliRunner().invoke, main, ["check", "--catalog", str(adapted.file), *folders])
    assert shown.exit_code == 1
    assert "by adapter_config.json and the model it is" in shown.output
