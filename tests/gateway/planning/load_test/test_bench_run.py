"""A benchmark of a core: what it sends, what it counts, what it says when things fail."""

import asyncio
import math

import pytest

from gateway.planning.load_test import BenchOptions, CoreTarget, row_text, run_bench
from gateway.planning.load_test.run import LoadRun, Timing, busy_share, percentile, summary
from gateway.planning.load_test.workload import Job, Load
from inference_core.errors import CoreError, CoreGoneError
from inference_core.protocol import SequenceOutput
from inference_core.transport.client import CoreClient
from tests.gateway.planning.load_test.word_tokenizer import WordTokenizer
from tests.inference_core.hash_model import hash_core
from tests.support.core import running_core

COLUMNS = (
    "concurrency requests ok errors wall_s out_tok_s total_tok_s req_s "
    "ttft_p50_ms ttft_p90_ms ttft_p99_ms ttft_p99_over_p50 itl_p50_ms itl_p90_ms itl_p99_ms itl_p99_over_p50 "
    "e2e_p50_ms e2e_p90_ms e2e_p99_ms e2e_p99_over_p50 "
    "mean_prompt mean_output short_answers no_usage api busy_before ignore_eos"
)


@pytest.fixture(autouse=True)
def no_look_at_the_machine(monkeypatch):
    async def share():
        return 0.25

    monkeypatch.setattr("gateway.planning.load_test.run.busy_share", share)


@pytest.fixture
async def client():
    async with running_core(lambda: hash_core("m", eos_probability=0.3)) as client:
        yield client


async def rows(client, progress=lambda _: None, **options):
    bench = run_bench(CoreTarget(client, WordTokenizer(), "m"), BenchOptions(**options), progress)
    return [row async for row in bench]


async def test_rows_have_the_columns_of_the_http_load_generator(client):
    (row,) = await rows(client, concurrency=(2,), prompt_tokens=10, output_tokens=4)

    assert list(row) == COLUMNS.split()
    assert (row["api"], row["busy_before"], row["ignore_eos"]) == ("in-process", 0.25, True)


async def test_every_answer_has_its_full_length_whatever_the_model_would_stop_at(client):
    small, large = await rows(client, concurrency=(1, 4), rounds=3, prompt_tokens=10, output_tokens=8)

    assert (small["requests"], small["ok"], large["requests"], large["ok"]) == (3, 3, 12, 12)
    assert (large["mean_prompt"], large["mean_output"]) == (10, 8)
    assert (large["short_answers"], large["no_usage"], large["errors"]) == (0, 0, {})


async def test_figures_of_a_row_agree_with_each_other(client):
    (row,) = await rows(client, concurrency=(2,), rounds=5, prompt_tokens=10, output_tokens=8)

    # `wall_s` is rounded to a tenth of a millisecond, of which this load takes some forty.
    rounding = 1e-4 / row["wall_s"]
    assert row["out_tok_s"] == pytest.approx(10 * 8 / row["wall_s"], rel=rounding)
    assert row["total_tok_s"] == pytest.approx(10 * 18 / row["wall_s"], rel=rounding)
    assert 0 < row["ttft_p50_ms"] <= row["ttft_p99_ms"] <= row["e2e_p99_ms"]


async def test_poisson_arrivals_and_traces_are_rows_too(client, tmp_path):
    path = tmp_path / "t.csv"
    path.write_text("time,prompt_tokens,output_tokens\n0,5,3\n0.01,6,4\n")

    (rate,) = await rows(client, rate=(1000.0,), requests=5, prompt_tokens=5, output_tokens=2)
    (trace,) = await rows(client, trace=path)

    assert (rate["rate"], rate["ok"]) == (1000.0, 5)
    assert (trace["trace"], trace["speed"], trace["ok"], trace["mean_output"]) == ("t.csv", 1.0, 2, 3.5)


async def test_only_a_shared_prefix_hits_the_prefix_cache(client):
    await rows(client, concurrency=(1,), rounds=3, prompt_tokens=40)
    distinct = (await client.stats()).models[0].prefix_hit_tokens
    await rows(client, concurrency=(1,), rounds=3, prompt_tokens=40, shared_prefix=64)
    shared = (await client.stats()).models[0].prefix_hit_tokens

    assert distinct == 0
    assert shared >= 3 * 64


async def test_progress_counts_up_to_the_end_of_every_row(client):
    seen = []

    await rows(client, seen.append, concurrency=(1, 2), rounds=2, prompt_tokens=3, output_tokens=2)

    assert [(p.label, p.done, p.total) for p in seen] == [
        ("concurrency=1", 1, 2),
        ("concurrency=1", 2, 2),
        *(("concurrency=2", done, 4) for done in range(1, 5)),
    ]
    assert seen[-1].output_tokens == 8


async def test_a_warm_up_that_fails_says_why(client):
    with pytest.raises(CoreError, match=r"warm-up: .*4096"):
        await rows(client, prompt_tokens=5000)


class ScriptedClient(CoreClient):
    """Answers after `turns` turns of the event loop and remembers how many requests were open at once."""

    def __init__(self, answer):
        self._answer = answer
        self.open = self.most_open = 0

    async def start(self): ...

    async def close(self): ...

    @property
    def models(self):
        return {}

    def unread(self, request_id):
        raise AssertionError

    def abort_choice(self, request_id, index):
        raise AssertionError

    async def stats(self):
        raise AssertionError

    async def set_knobs(self, changes, model=None, *, keep=False):
        raise AssertionError

    async def load_adapter(self, model, name, path):
        raise AssertionError

    async def unload_adapter(self, model, name):
        raise AssertionError

    async def generate(self, request):
        self.open += 1
        self.most_open = max(self.most_open, self.open)
        try:
            for _ in range(5):
                await asyncio.sleep(0)
            yield await self._answer(request)
        finally:
            self.open -= 1


async def test_a_closed_loop_keeps_its_concurrency_in_flight_and_no_more():
    async def answer(request):
        return SequenceOutput(request_id="", index=0, token_ids=[1], finish_reason="length", completion_tokens=1)

    client = ScriptedClient(answer)

    await rows(client, concurrency=(5,), rounds=4, warmup=0)

    assert client.most_open == 5


class PacedClient(ScriptedClient):
    """Gives the first token after 60 ms and each of the three others 20 ms after the one before."""

    async def generate(self, request):
        for place in range(4):
            await asyncio.sleep(0.02 if place else 0.06)
            ended = {"finish_reason": "length", "completion_tokens": 4} if place == 3 else {}
            yield SequenceOutput(request_id="", index=0, token_ids=[1], **ended)


async def test_times_are_those_to_the_first_token_between_tokens_and_of_the_whole_answer():
    run = LoadRun(CoreTarget(PacedClient(None), WordTokenizer(), "m"), timeout=30.0)

    timings = await run.measured(Load({}, [Job("Why?", 4)] * 3, 3))

    clock = 0.001  # by which a loop may wake too early
    for timing in timings:
        assert timing.ttft > 0.06 - clock
        assert len(timing.gaps) == 3
        assert min(timing.gaps) > 0.02 - 2 * clock
        assert timing.ttft + sum(timing.gaps) <= timing.e2e


async def test_errors_are_counted_by_kind_and_leave_the_other_figures_alone():
    outcomes = iter(["ok", "overloaded", "gone", "hang", "short", "overloaded"])

    async def answer(request):
        outcome = next(outcomes)
        if outcome == "gone":
            raise CoreGoneError("it died")
        if outcome == "hang":
            await asyncio.Event().wait()
        if outcome == "overloaded":
            return SequenceOutput(
                request_id="", index=0, token_ids=[], finish_reason="error", error="full", error_kind="overloaded"
            )
        tokens = 4 if outcome == "ok" else 2
        return SequenceOutput(
            request_id="",
            index=0,
            token_ids=[0] * tokens,
            finish_reason="length",
            prompt_tokens=10,
            completion_tokens=tokens,
        )

    (row,) = await rows(
        ScriptedClient(answer), concurrency=(1,), rounds=6, warmup=0, output_tokens=4, timeout=1.0, slo_ttft_ms=1e6
    )

    assert row["errors"] == {"overloaded": 2, "core gone": 1, "timeout": 1}
    assert (row["requests"], row["ok"], row["short_answers"], row["mean_output"]) == (6, 2, 1, 3)
    assert row["good_fraction"] == pytest.approx(2 / 6, abs=1e-3)


def test_percentiles_are_by_nearest_rank():
    assert [percentile(range(1, 101), q) for q in (0.5, 0.9, 0.99)] == [50, 90, 99]
    assert percentile([7.0], 0.99) == 7
    assert percentile([], 0.5) is None


def test_goodput_holds_a_request_to_its_first_token_and_its_mean_pace():
    timings = [
        Timing(asked=3, ttft=0.1, gaps=[0.01, 0.03], e2e=0.2, output_tokens=3, has_usage=True),  # mean pace 20 ms
        Timing(asked=3, ttft=0.3, gaps=[0.01, 0.01], e2e=0.4, output_tokens=3, has_usage=True),  # late first token
        Timing(asked=3, ttft=0.1, gaps=[0.05, 0.05], e2e=0.2, output_tokens=3, has_usage=True),  # slow pace
        Timing(asked=3, error="timeout"),
    ]

    row = summary({}, timings, 2.0, BenchOptions(slo_ttft_ms=200, slo_itl_ms=20), {})

    assert (row["goodput_req_s"], row["good_fraction"]) == (0.5, 0.25)


def test_a_row_reads_as_pairs():
    assert row_text({"concurrency": 8, "wall_s": 1.23456, "out_tok_s": 250.04}) == (
        "concurrency=8  wall_s=1.235  out_tok_s=250.0"
    )


async def test_the_share_of_busy_time_is_a_share():
    share = await busy_share(0.05)

    assert share is None or (0 <= share <= 1 and not math.isnan(share))
