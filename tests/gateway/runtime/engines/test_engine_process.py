"""One engine kept running, with a scripted program in place of the real one: real child processes, real ports."""

import os
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import pytest

from gateway.base.stores.retries import background
from gateway.runtime.engines.engine_process import EngineProcess, Timing, pause_after
from tests.gateway.runtime.engines.scripted_engine import ScriptedEngine
from tests.inference_core.loaders.model_hub import running_hub
from tests.polling import eventually
from tests.process_tree import lives
from tiers.engines import EngineSpec, EngineStatus

pytestmark = pytest.mark.processes

# An engine that a busy machine keeps waiting is not taken for one that hangs.
QUICK = Timing(
    first_delay=0.05, last_delay=0.2, poll=0.02, check_every=0.1, check_patience=100.0, failed_checks=2, grace=0.5
)


@asynccontextmanager
async def kept(
    engine: ScriptedEngine,
    tmp_path: Path,
    *,
    changed: Callable[[EngineStatus], None] = lambda status: None,
    timing: Timing = QUICK,
    **spec: object,
) -> AsyncIterator[EngineProcess]:
    """Keep the scripted engine running while the block runs."""
    fields: dict[str, object] = {"kind": engine.path.name, "model": str(engine.model)}
    process = EngineProcess(
        "small",
        EngineSpec(**(fields | spec)),  # type: ignore[arg-type]
        tmp_path / "engines",
        changed,
        secret=["UPSTREAM_KEY"],
        timing=timing,
        environ={**engine.environment(), "AIO_API_KEYS": "a=b", "UPSTREAM_KEY": "secret"},
    )
    async with background(process.keep, "engine"):
        yield process


def read(path: str) -> bytes:
    return Path(path).read_bytes()


def ready(process: EngineProcess) -> Callable[[], bool]:
    return lambda: process.status.state == "ready"


async def test_an_engine_is_started_on_a_loopback_port_and_reports_its_context(tmp_path: Path) -> None:
    engine = ScriptedEngine(tmp_path / "bin")
    engine.say(context=2048)
    async with kept(engine, tmp_path, args=("--threads", "1; touch /tmp/never")) as process:
        await eventually(ready(process))
        assert process.status.url.startswith("http://127.0.0.1:")
        assert process.status.context == 2048
        assert process.status.restarts == 0
        (start,) = engine.starts()
        port = process.status.url.removesuffix("/v1").rpartition(":")[2]
        assert start["argv"] == [
            *("--host", "127.0.0.1", "--port", port, "--model", str(engine.model), "--alias", "model"),
            *("--metrics", "--threads", "1; touch /tmp/never"),
        ]
        assert "AIO_API_KEYS" not in start["env"]
        assert "UPSTREAM_KEY" not in start["env"]
        async with httpx.AsyncClient() as client:
            assert (await client.get(f"{process.status.url}/models")).status_code == 200
    assert engine.running() == []


@pytest.mark.parametrize(
    "page", ["[" * 100_000, '{"a":' * 100_000, '{"\xff": 1}', '{"default_generation_settings": 1}']
)
async def test_an_engine_whose_report_cannot_be_read_serves_without_a_known_context(tmp_path: Path, page: str) -> None:
    engine = ScriptedEngine(tmp_path / "bin")
    engine.say(page=page)
    async with kept(engine, tmp_path) as process:
        await eventually(lambda: process.status.state in ("ready", "down"))
        assert (process.status.state, process.status.context, process.status.start) == ("ready", None, 1)


async def test_an_engine_that_loads_slowly_is_starting_until_it_is_healthy(tmp_path: Path) -> None:
    engine, seen = ScriptedEngine(tmp_path / "bin"), []
    engine.say(start_seconds=0.5)
    async with kept(engine, tmp_path, changed=seen.append) as process:
        await eventually(ready(process))
    states = [status.state for status in seen]
    assert states[: states.index("ready")] == ["starting"] * states.index("ready")
    assert len(engine.starts()) == 1


async def test_an_engine_that_is_not_ready_in_time_is_stopped_and_tried_again(tmp_path: Path) -> None:
    engine = ScriptedEngine(tmp_path / "bin")
    engine.say(start_seconds=600)
    async with kept(engine, tmp_path, start_timeout_seconds=3) as process:
        await eventually(lambda: process.status.state == "down")
        assert "not ready within 3 s (start_timeout_seconds)" in process.status.detail
        engine.say(start_seconds=0)
        await eventually(ready(process))


async def test_a_program_that_is_missing_is_named_with_the_way_to_install_it(tmp_path: Path) -> None:
    engine = ScriptedEngine(tmp_path / "bin", "vllm")
    engine.path.rename(tmp_path / "bin" / "elsewhere")
    async with kept(engine, tmp_path, kind="vllm", model=str(tmp_path)) as process:
        await eventually(lambda: process.status.state == "down")
        assert process.status.detail == "the program vllm is not installed or not on PATH; install it: pip install vllm"
        # Installed meanwhile, it is found without a restart of AIO.
        (tmp_path / "bin" / "elsewhere").rename(engine.path)
        await eventually(ready(process))


async def test_a_model_that_does_not_exist_is_named_and_no_program_is_started(tmp_path: Path) -> None:
    engine = ScriptedEngine(tmp_path / "bin")
    async with kept(engine, tmp_path, model="/no/such/model.gguf") as process:
        await eventually(lambda: process.status.state == "down")
        assert "/no/such/model.gguf" in process.status.detail
        assert engine.starts() == []


async def test_an_engine_that_dies_is_restarted_on_its_port_and_counted(tmp_path: Path) -> None:
    engine = ScriptedEngine(tmp_path / "bin")
    async with kept(engine, tmp_path) as process:
        await eventually(ready(process))
        before = process.status
        os.kill(engine.starts()[0]["pid"], signal.SIGKILL)
        await eventually(lambda: process.status.start == 2 and process.status.state == "ready")
        assert process.status.restarts == 1
        assert process.status.url == before.url


async def test_the_reason_of_a_failed_start_has_the_last_line_of_the_output(tmp_path: Path) -> None:
    engine = ScriptedEngine(tmp_path / "bin")
    engine.say(exit_at_start=7)
    async with kept(engine, tmp_path) as process:
        await eventually(lambda: process.status.state == "down")
        assert process.status.detail == (
            "llama-server ended with status 7 before it was ready; it wrote: cannot load the model: no memory"
        )


async def test_an_engine_that_hangs_is_killed_and_restarted_even_if_it_ignores_sigterm(tmp_path: Path) -> None:
    engine = ScriptedEngine(tmp_path / "bin")
    engine.say(ignore_sigterm=True)
    timing = Timing(
        first_delay=0.05, last_delay=0.2, poll=0.02, check_every=0.1, check_patience=0.3, failed_checks=2, grace=0.3
    )
    async with kept(engine, tmp_path, timing=timing) as process:
        await eventually(ready(process))
        # With so little patience a busy machine may have replaced it before.
        hanging, start = engine.starts()[-1]["pid"], process.status.start
        engine.say(hang=True)
        await eventually(lambda: not lives(hanging))
        engine.say(hang=False)
        await eventually(lambda: process.status.start > start and process.status.state == "ready")
        assert engine.starts()[-1]["pid"] != hanging


async def test_a_port_that_another_program_took_leads_to_another_port(tmp_path: Path) -> None:
    engine = ScriptedEngine(tmp_path / "bin")
    engine.say(refuse_port="first")
    async with kept(engine, tmp_path) as process:
        await eventually(ready(process))
        first, second = (start["argv"][3] for start in engine.starts())
        assert first != second
        assert process.status.url == f"http://127.0.0.1:{second}/v1"


async def test_stopping_ends_everything_that_the_engine_started(tmp_path: Path) -> None:
    engine = ScriptedEngine(tmp_path / "bin")
    engine.say(spawn=True, ignore_sigterm=True)
    async with kept(engine, tmp_path) as process:
        await eventually(ready(process))
        assert len(engine.running()) == 2
    assert engine.running() == []
    assert process.status.state == "down"


async def test_what_an_engine_leaves_behind_when_it_dies_is_ended_too(tmp_path: Path) -> None:
    engine = ScriptedEngine(tmp_path / "bin")
    engine.say(spawn=True)
    async with kept(engine, tmp_path) as process:
        await eventually(ready(process))
        engine.say(spawn=False)
        os.kill(engine.starts()[0]["pid"], signal.SIGKILL)
        await eventually(lambda: process.status.start == 2 and process.status.state == "ready")
        assert engine.running() == [engine.starts()[1]["pid"]]


async def test_garbage_in_the_output_reaches_no_message_and_the_log_keeps_its_bound(tmp_path: Path) -> None:
    engine = ScriptedEngine(tmp_path / "bin")
    engine.say(garbage=True, exit_at_start=1)
    async with kept(engine, tmp_path) as process:
        await eventually(lambda: process.status.state == "down")
        assert process.status.detail.isprintable()
        assert len(process.status.detail) < 1000
    assert b"last words" in read(process.status.log)


@pytest.mark.parametrize(("failures", "longest"), [(0, 1.0), (1, 2.0), (3, 8.0), (6, 60.0), (10_000, 60.0)])
def test_pauses_between_restarts_double_up_to_a_bound_and_vary(failures: int, longest: float) -> None:
    pauses = [pause_after(failures, Timing()) for _ in range(50)]
    assert all(longest / 2 <= pause <= longest for pause in pauses)
    assert len(set(pauses)) > 1


async def test_ollama_is_given_its_address_and_pulls_the_model_that_is_not_there(tmp_path: Path) -> None:
    engine, seen = ScriptedEngine(tmp_path / "bin", "ollama"), []
    async with kept(engine, tmp_path, changed=seen.append, model="smollm2:135m") as process:
        await eventually(ready(process))
        (start,) = engine.starts()
        assert start["argv"] == ["serve"]
        assert process.status.url == f"http://{start['env']['OLLAMA_HOST']}/v1"
        assert any(status.detail == "ollama pulls smollm2:135m: 50% of 0.00 GB" for status in seen)


async def test_a_model_that_ollama_does_not_have_is_named(tmp_path: Path) -> None:
    engine = ScriptedEngine(tmp_path / "bin", "ollama")
    async with kept(engine, tmp_path, model="no-such-model") as process:
        await eventually(lambda: process.status.state == "down")
        assert "ollama cannot pull no-such-model: pull model manifest: file does not exist" in process.status.detail


async def test_a_model_by_its_hugging_face_id_is_downloaded_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    engine = ScriptedEngine(tmp_path / "bin")
    with running_hub() as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.url)
        async with kept(engine, tmp_path, model="org/model") as process:
            await eventually(lambda: process.status.state == "down")
            assert "has no public repository of this name" in process.status.detail
            commit = hub.add("org/model", {"m-Q4_K_M.gguf": b"GGUF", "m-Q8_0.gguf": b"GGUF"})
            await eventually(ready(process))
    argv = engine.starts()[0]["argv"]
    assert argv[5].endswith(f"/snapshots/{commit}/m-Q4_K_M.gguf")
    assert argv[7] == "org/model"
