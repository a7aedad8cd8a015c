"""A GPU group of a catalogue is served by real processes, on the host, by the kernels' reference implementations."""

import signal
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
import torch
from prometheus_client.parser import text_string_to_metric_families

from inference_core.device.cards import visible_cards
from inference_core.loaders.hub_model import resolve_model_path
from inference_core.parallel.load_group import load_group
from inference_core.protocol import AddRequest, SamplingParams
from inference_core.tokenization.load_tokenizer import load_tokenizer
from tests.gateway.device_catalog import CARD_MODEL, CPU_MODEL, MODEL, write_catalog
from tests.support.served import ENDED_SECONDS, ServedProcess, served, started
from tiers.catalog.core_spec import group_spec
from tiers.catalog.load import load_catalog

pytestmark = pytest.mark.processes

FRANCE = [{"role": "user", "content": "What is the capital of France?"}]
WORDS = 8


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    """The references are many small operations, which more threads slow down on a busy machine."""
    threads = torch.get_num_threads()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OMP_NUM_THREADS", "1")
        torch.set_num_threads(1)
        yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="module")
def catalog(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_catalog(tmp_path_factory.mktemp("catalog") / "two-cores.toml")


@pytest.fixture(scope="module")
def alone(catalog: Path, cache: Path) -> str:
    """Return the card model's answer to `FRANCE` when computed alone."""
    core = load_group(group_spec(load_catalog(str(catalog)), "card"), cache)
    tokenizer = load_tokenizer(resolve_model_path(MODEL))
    prompt = tokenizer.encode_chat(FRANCE, add_generation_prompt=True)
    sampling = SamplingParams(temperature=0, max_tokens=WORDS)
    core.add(AddRequest(request_id="r", model=CARD_MODEL, prompt_token_ids=prompt, sampling=sampling))
    tokens: list[int] = []
    while core.has_work:
        tokens += [token for output in core.step() for token in output.token_ids]
    return tokenizer.decode(tokens)


def ask(aio: ServedProcess, model: str, text: str | None = None) -> Any:
    messages = FRANCE if text is None else [{"role": "user", "content": text}]
    return aio.client.chat.completions.create(model=model, messages=messages, max_tokens=WORDS, temperature=0)


def said(aio: ServedProcess, model: str) -> str:
    return str(ask(aio, model).choices[0].message.content)


def up(aio: ServedProcess) -> dict[str, float]:
    families = text_string_to_metric_families(httpx.get(f"{aio.url}/metrics").text)
    samples = (sample for family in families for sample in family.samples)
    return {sample.labels["core"]: sample.value for sample in samples if sample.name == "aio_core_up"}


def test_one_process_serves_the_cpus_core_and_the_groups(
    tmp_path: Path, cache: Path, catalog: Path, alone: str
) -> None:
    with served(tmp_path, cache, "--catalog", str(catalog)) as aio:
        aio.until_whole()
        assert said(aio, "tier-2") == alone
        on_cpu = said(aio, "tier-1")
        assert "Paris" in alone
        assert on_cpu

        # With neighbours on both cores, every request still gets the same tokens.
        others = [threading.Thread(target=ask, args=(aio, model, "Tell me a story.")) for model in ("tier-1", "tier-3")]
        for other in others:
            other.start()
        assert (said(aio, "tier-2"), said(aio, "tier-1")) == (alone, on_cpu)
        for other in others:
            other.join()

        knobs = aio.admin.get("/v1/admin/knobs/core").json()
        assert knobs["cores"] == {CPU_MODEL: "cpu", CARD_MODEL: "card"}
        assert knobs["models"][CARD_MODEL]["max_num_seqs"] == 8
        refused = aio.admin.patch("/v1/admin/knobs/core", json={"max_num_seqs": 9, "core": "card"})
        assert "room for 8" in refused.json()["error"]["message"]
        cores = {core["name"]: core for core in aio.admin.get("/v1/admin/stats").json()["cores"]}
        assert cores["card"]["models"] == [CARD_MODEL]
        assert 0 < cores["card"]["arena_bytes"] < 1_600_000_000
        assert min(core["steps"] for core in cores.values()) > WORDS
    log = (tmp_path / "log").read_text()
    assert f"card: weights of {CARD_MODEL} (dense)" in log
    assert "card: usable: " in log


@pytest.mark.slow  # four processes; `test_several_cores` does the same with hash models
def test_a_killed_core_takes_down_only_its_tiers_until_it_is_started_again(
    tmp_path: Path, cache: Path, catalog: Path, alone: str
) -> None:
    options = ("--catalog", str(catalog), "--socket", str(tmp_path / "core.sock"))

    def core(name: str) -> Any:
        return started(tmp_path / name, cache, "--role", "core", "--group", name, *options)

    def until(aio: ServedProcess, status: str) -> dict[str, Any]:
        # One client: a TLS context costs more than the rest of a request.
        with httpx.Client(base_url=aio.url) as client:
            while (shown := client.get("/health/ready").json())["status"] != status:
                time.sleep(0.05)  # polled: it happens in other processes, which need the processor
        return dict(shown.get("problems", {}))

    with ExitStack() as stack:
        aio = stack.enter_context(served(tmp_path / "gateway", cache, "--role", "gateway", *options))
        stack.enter_context(core("cpu"))
        card = stack.enter_context(core("card"))
        until(aio, "ok")
        assert said(aio, "tier-2") == alone
        assert not aio.maps_torch()

        card.send_signal(signal.SIGKILL)
        card.wait()
        problems = until(aio, "degraded")
        assert problems["tiers"] == "these take no requests: 2, 3"
        with pytest.raises(openai.InternalServerError) as refused:
            ask(aio, "tier-2")
        assert refused.value.status_code == 503
        assert said(aio, "tier-1")
        answer = aio.client.chat.completions.with_raw_response.create(
            model="auto", messages=FRANCE, max_tokens=WORDS, extra_headers={"x-aio-min-tier": "2"}
        )
        assert answer.headers["x-aio-tier"] == "4"
        assert up(aio) == {"cpu": 1.0, "card": 0.0}

        stack.enter_context(core("card"))
        until(aio, "ok")
        assert said(aio, "tier-2") == alone


def test_a_machine_without_the_cards_refuses_before_it_loads_anything(tmp_path: Path, cache: Path) -> None:
    if visible_cards() >= 5:
        pytest.skip("this machine has the datacenter catalogue's cards")
    with started(tmp_path, cache, "--port", "0", "--catalog", "datacenter") as process:
        assert process.wait(ENDED_SECONDS) == 1
    log = (tmp_path / "log").read_text()
    assert "group gpu-70b" in log
    assert "[tiers.remote]" in log
    assert "Traceback" not in log
    assert "loaded" not in log
