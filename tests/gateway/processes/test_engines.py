"""`aio serve` with a tier on an engine that it starts: other tiers serve without it, and it ends with AIO."""

import os
import signal
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from tests.gateway.runtime.engines.scripted_engine import ScriptedEngine
from tests.polling import until
from tests.support.served import ENDED_SECONDS, ServedProcess, served
from tests.support.upstream import Upstream

pytestmark = pytest.mark.processes

CATALOG = """
[[tiers]]
name = "small"
engine = "llama-server"
model = "{model}"

[[tiers]]
name = "large"
url = "{url}"
"""


@pytest.fixture
def engine(tmp_path: Path) -> ScriptedEngine:
    return ScriptedEngine(tmp_path / "bin")


@contextmanager
def serving(engine: ScriptedEngine, upstream: Upstream, tmp_path: Path, *options: str) -> Iterator[ServedProcess]:
    catalog = tmp_path / "aio.toml"
    catalog.write_text(CATALOG.format(model=engine.model, url=upstream.base_url))
    environment: Mapping[str, str] = {"PATH": engine.environment()["PATH"]}
    options = ("--catalog", str(catalog), *options)
    with served(tmp_path / "data", tmp_path / "cache", *options, environment=environment) as aio:
        yield aio


def health(aio: ServedProcess) -> dict[str, Any]:
    found: dict[str, Any] = httpx.get(f"{aio.url}/health/ready", timeout=120).json()
    return found


def ask(aio: ServedProcess, model: str) -> openai.types.chat.ChatCompletion:
    return aio.client.chat.completions.create(model=model, messages=[{"role": "user", "content": "from upstream"}])


def is_answered(aio: ServedProcess, model: str) -> bool:
    try:
        return ask(aio, model).choices[0].message.content == "one two three"
    except openai.InternalServerError:
        return False


def test_other_tiers_serve_while_an_engine_starts_and_it_joins_them(
    engine: ScriptedEngine, upstream: Upstream, tmp_path: Path
) -> None:
    engine.say(start_seconds=10_000)
    with serving(engine, upstream, tmp_path) as aio:
        found = health(aio)
        assert found["status"] == "degraded"
        assert found["problems"]["tier 1"] == "llama-server is starting"
        assert ask(aio, "large").choices[0].message.content == "from upstream"
        assert ask(aio, "auto").choices[0].message.content == "from upstream"
        with pytest.raises(openai.InternalServerError, match="the tier is down"):
            ask(aio, "small")
        engine.say(start_seconds=0)
        until(lambda: health(aio)["status"] == "ok")
        assert ask(aio, "small").choices[0].message.content == "one two three"


def test_an_engine_that_dies_in_mid_stream_ends_the_stream_with_an_error_and_comes_back(
    engine: ScriptedEngine, upstream: Upstream, tmp_path: Path
) -> None:
    with serving(engine, upstream, tmp_path) as aio:
        until(lambda: health(aio)["status"] == "ok")
        (engine.folder / "hold").touch()
        (engine.folder / "die").touch()
        stream = aio.client.chat.completions.create(
            model="small", messages=[{"role": "user", "content": "x"}], stream=True
        )
        assert next(iter(stream)) is not None
        (engine.folder / "hold").unlink()
        with pytest.raises(openai.APIError):
            list(stream)
        (engine.folder / "die").unlink()
        assert ask(aio, "auto").choices[0].message.content
        until(lambda: health(aio)["status"] == "ok" and len(engine.starts()) == 2)
        assert ask(aio, "small").choices[0].message.content == "one two three"
        assert 'aio_engine_restarts{tier="1"} 1.0' in httpx.get(f"{aio.url}/metrics").text
        system = aio.admin.get("/admin/api/system").json()
        (tier,) = [one for one in system["dependencies"] if one["name"].startswith("tier 1")]
        assert "restarted 1 times" in tier["detail"]
    assert engine.running() == []


def test_the_engine_ends_with_an_aio_that_is_killed(engine: ScriptedEngine, upstream: Upstream, tmp_path: Path) -> None:
    engine.say(spawn=True)
    with serving(engine, upstream, tmp_path) as aio:
        until(lambda: health(aio)["status"] == "ok")
        assert len(engine.running()) == 2
        aio.kill()
        until(lambda: not engine.running())


def test_several_gateway_processes_share_one_engine_that_ends_with_their_supervisor(
    engine: ScriptedEngine, upstream: Upstream, tmp_path: Path
) -> None:
    with serving(engine, upstream, tmp_path, "--gateway-workers", "2") as aio:
        # A process that has not noticed yet that the engine is ready, or has ended, says so or refuses for a moment.
        for _ in range(8):
            until(lambda: is_answered(aio, "small"))
        assert len(engine.starts()) == 1
        os.kill(engine.starts()[0]["pid"], signal.SIGKILL)
        until(lambda: len(engine.starts()) == 2)
        until(lambda: is_answered(aio, "small"))
        aio.kill()
        until(lambda: not engine.running())


def test_a_second_aio_on_the_same_data_folder_uses_the_engine_and_takes_over(
    engine: ScriptedEngine, upstream: Upstream, tmp_path: Path
) -> None:
    with serving(engine, upstream, tmp_path) as first:
        until(lambda: health(first)["status"] == "ok")
        # Two servers never share a SQLite database of the folder.
        other = ("--database-url", f"sqlite:///{tmp_path}/second.db")
        with serving(engine, upstream, tmp_path, *other) as second:
            until(lambda: health(second)["status"] == "ok")
            assert ask(second, "small").choices[0].message.content == "one two three"
            assert len(engine.starts()) == 1
            first.kill()
            until(lambda: len(engine.starts()) == 2 and health(second)["status"] == "ok")
            assert ask(second, "small").choices[0].message.content == "one two three"


def test_an_interrupt_does_not_wait_for_an_engine_that_never_gets_ready(
    engine: ScriptedEngine, upstream: Upstream, tmp_path: Path
) -> None:
    engine.say(start_seconds=10_000)
    with serving(engine, upstream, tmp_path) as aio:
        until(lambda: engine.running())
        aio.process.send_signal(signal.SIGINT)
        assert aio.process.wait(ENDED_SECONDS) == 0
    assert engine.running() == []


def test_a_reload_changes_the_price_of_an_engines_tier_and_not_the_engine(
    engine: ScriptedEngine, upstream: Upstream, tmp_path: Path
) -> None:
    with serving(engine, upstream, tmp_path) as aio:
        until(lambda: health(aio)["status"] == "ok")
        catalog = tmp_path / "aio.toml"
        text = catalog.read_text()

        def reloaded(changed: str) -> httpx.Response:
            catalog.write_text(changed)
            return aio.admin.post("/v1/admin/reload", json={"reason": "a new version"})

        refused = reloaded(text.replace("llama-server", "ollama", 1))
        assert refused.status_code == 409
        assert "runs here" in refused.text
        price = 'engine = "llama-server"\nprice = { input_usd_per_million = 0, output_usd_per_million = 0 }'
        accepted = reloaded(text.replace('engine = "llama-server"', price))
        assert accepted.status_code == 200, accepted.text
        assert ask(aio, "small").choices[0].message.content == "one two three"
        assert len(engine.starts()) == 1
