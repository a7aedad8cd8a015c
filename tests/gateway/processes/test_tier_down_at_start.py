"""A gateway with remote tiers starts although one of them is down, says why, and finds it when it is up."""

from pathlib import Path
from typing import Any

import httpx
import pytest

from gateway.base.settings import Settings
from gateway.runtime.cores import engine
from gateway.runtime.cores.engine import running_engine
from tests.polling import eventually
from tests.support.app import gateway_of, running_gateway
from tests.support.upstream import Call, LoopbackServer, remote_catalog, write_remote_catalog
from tests.tiers.remote.triton_server import Triton
from tiers.catalog.load import load_catalog
from tiers.errors import CatalogError

pytestmark = pytest.mark.processes


@pytest.fixture(autouse=True)
def short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """A tier that is down delays a start by its limit, and is found at the next look."""
    monkeypatch.setattr(engine, "FIRST_ANSWER_SECONDS", 1.0)
    monkeypatch.setattr(engine, "WATCH_SECONDS", 0.05)


class Server(LoopbackServer):
    """Answers requests; while it is `loading` it reports that instead."""

    def __init__(self, *, loading: bool) -> None:
        super().__init__(self._hello)
        self.loading, self.looked_at = loading, self._look

    async def _look(self, call: Call) -> None:
        await call.reply(503 if self.loading else 200, {"error": {"message": "loading"}})

    async def _hello(self, call: Call) -> None:
        await call.whole("hello", {"prompt_tokens": 1, "completion_tokens": 1})


def catalogue(well: str, other: str) -> str:
    """Tier 1 at the other server, the rest at the healthy one."""
    return remote_catalog(well).replace(well, other, 1)


async def only_away(http: httpx.AsyncClient, name: str) -> dict[str, Any]:
    """What readiness says once only this tier is away, and has said why; empty before."""
    said: dict[str, Any] = (await http.get("/health/ready")).json()
    away = {tier: why for tier, why in said.get("problems", {}).items() if tier.startswith("tier ")}
    return said if list(away) == [name] and away[name] != "has not answered yet" else {}


async def asked(http: httpx.AsyncClient, model: str) -> httpx.Response:
    body = {"model": model, "messages": [{"role": "user", "content": "Say hello."}]}
    return await http.post("/v1/chat/completions", json=body)


@pytest.mark.parametrize("role", ["all", "gateway"])
async def test_a_tier_that_is_down_at_the_start_is_routed_around_and_found_when_it_comes(
    role: str, tmp_path: Path
) -> None:
    async with (
        Server(loading=False) as well,
        Server(loading=True) as other,
        gateway_of(tmp_path, catalogue(well.base_url, other.base_url), role=role) as aio,
    ):
        # On a busy machine the others too may not have answered in time.
        ready = await eventually(lambda: only_away(aio.http, "tier 1"))
        assert ready["status"] == "degraded"
        assert "503" in ready["problems"]["tier 1"]
        refused = await asked(aio.http, "tier-1")
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "no_tier_available")
        answered = await asked(aio.http, "auto")
        assert (answered.status_code, int(answered.headers["x-aio-tier"]) > 1) == (200, True)
        other.loading = False

        async def back() -> bool:
            return (await asked(aio.http, "tier-1")).status_code == 200

        await eventually(back)
        assert (await aio.http.get("/health/ready")).json() == {"status": "ok"}


async def test_readiness_names_a_triton_model_without_the_tensors(tmp_path: Path) -> None:
    model = Triton(["Hello"], inputs=("input_ids",))
    async with Server(loading=False) as well, LoopbackServer(model.answer) as other:
        other.looked_at = model.look
        table = 'model = "upstream"\n'
        catalog = catalogue(well.base_url, other.base_url.removesuffix("/v1"))
        catalog = catalog.replace(table, table + 'kind = "triton-tensorrt-llm"\n', 1)
        async with gateway_of(tmp_path, catalog) as aio:
            ready = await eventually(lambda: only_away(aio.http, "tier 1"))
            assert ready["status"] == "degraded"
            assert "'upstream' without the inputs max_tokens, text_input" in ready["problems"]["tier 1"]
            model.inputs = ("text_input", "max_tokens")

            async def is_ready() -> bool:
                return bool((await aio.http.get("/health/ready")).json() == {"status": "ok"})

            await eventually(is_ready)


async def test_without_any_tier_it_starts_and_is_not_ready(tmp_path: Path) -> None:
    async with (
        Server(loading=True) as server,
        gateway_of(tmp_path, remote_catalog(server.base_url)) as aio,
    ):
        assert (await aio.http.get("/health/live")).status_code == 200
        ready = await aio.http.get("/health/ready")
        assert (ready.status_code, ready.json()["problems"]["tiers"]) == (503, "no tier takes requests")
        refused = await asked(aio.http, "auto")
        assert (refused.status_code, "retry-after" in refused.headers) == (503, True)


async def test_what_no_waiting_mends_still_stops_the_start(tmp_path: Path) -> None:
    async with Server(loading=False) as server:
        path = write_remote_catalog(tmp_path / "catalog.toml", server.base_url)
        table = 'model = "upstream"\n'
        path.write_text(path.read_text().replace(table, table + 'kind = "triton-vllm"\ntokenizer = "/nowhere"\n', 1))
        settings = Settings(data_dir=str(tmp_path), monitor=False, catalog=str(path))
        with pytest.raises(CatalogError, match="/nowhere"):
            async with running_engine(settings, load_catalog(settings.catalog)):
                pass


async def test_a_tier_without_its_key_is_away_with_the_reason_and_the_others_serve_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("ABSENT_KEY", raising=False)
    async with Server(loading=False) as well:
        path = write_remote_catalog(tmp_path / "catalog.toml", well.base_url)
        path.write_text(path.read_text().replace("max_context", 'api_key_env = "ABSENT_KEY"\nmax_context', 1))
        settings = Settings(data_dir=str(tmp_path), monitor=False, catalog=str(path))
        # It is not waited for as a server is that may come.
        monkeypatch.setattr(engine, "FIRST_ANSWER_SECONDS", 100_000.0)
        async with running_engine(settings, load_catalog(str(path))):
            pass
        async with running_gateway(settings, scripted=False) as aio:
            ready = await aio.http.get("/health/ready")
            assert (ready.status_code, ready.json()["status"]) == (200, "degraded")
            assert "ABSENT_KEY, which is not set; set it" in await eventually(lambda: reason(aio.http))
            assert "ABSENT_KEY" in (await aio.http.get("/admin/api/system")).text
            assert (await asked(aio.http, "tier-1")).status_code == 503
            answered = await asked(aio.http, "auto")
            assert (answered.status_code, answered.headers["x-aio-tier"]) == (200, "2")
            path.write_text(path.read_text().replace('api_key_env = "ABSENT_KEY"\n', ""))
            assert (await aio.http.post("/v1/admin/reload", json={"reason": "no key needed"})).status_code == 200
            assert await eventually(lambda: is_ready(aio.http))
            assert (await asked(aio.http, "tier-1")).status_code == 200


async def reason(http: httpx.AsyncClient) -> str:
    problem: str = (await http.get("/health/ready")).json()["problems"]["tier 1"]
    return problem if "KEY" in problem else ""


async def is_ready(http: httpx.AsyncClient) -> bool:
    return bool((await http.get("/health/ready")).json()["status"] == "ok")


async def test_a_gateway_none_of_whose_tiers_has_its_key_does_not_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("ABSENT_KEY", raising=False)
    path = write_remote_catalog(tmp_path / "catalog.toml", "http://127.0.0.1:1/v1")
    path.write_text(path.read_text().replace("max_context", 'api_key_env = "ABSENT_KEY"\nmax_context'))
    with pytest.raises(CatalogError, match="no tier has its API key; set ABSENT_KEY"):
        async with running_engine(Settings(data_dir=str(tmp_path)), load_catalog(str(path))):
            pass
