"""Loads: a seed gives the prompts and arrivals that other servers are measured with; traces replay as recorded."""

import pytest

from gateway.planning.capacity.workload import TraceError
from gateway.planning.load_test import BenchOptions
from gateway.planning.load_test.workload import Prompts, loads, warmup_jobs
from tests.gateway.in_process_cli import aio

GOLDEN_PROMPTS = [
    "family art parent home student car woman house area",
    "family art parent man side way right thing life",
]
GOLDEN_ARRIVALS = [0.0, 0.9837080820703963, 1.2307277152723497]


def jobs_of(options):
    return [job for load in loads(options, Prompts(options.seed, options.shared_prefix)) for job in load.jobs]


def test_a_seed_gives_the_prompts_that_other_load_generators_send():
    options = BenchOptions(seed=7, shared_prefix=3, prompt_tokens=6, warmup=2)

    jobs = warmup_jobs(options, Prompts(options.seed, options.shared_prefix))

    assert [job.prompt for job in jobs] == GOLDEN_PROMPTS


def test_a_seed_gives_the_arrivals_that_other_load_generators_keep():
    jobs = jobs_of(BenchOptions(rate=(2.0,), requests=3, seed=7))

    assert [job.due for job in jobs] == pytest.approx(GOLDEN_ARRIVALS)


def test_prompts_are_distinct_and_of_the_length_asked_for():
    prompts = [job.prompt for job in jobs_of(BenchOptions(concurrency=(4,), rounds=5, prompt_tokens=20))]

    assert len(set(prompts)) == 20
    assert {len(prompt.split()) for prompt in prompts} == {20}


def test_a_shared_prefix_stands_in_front_of_every_prompt():
    prompts = [job.prompt for job in jobs_of(BenchOptions(concurrency=(3,), shared_prefix=10, prompt_tokens=5))]

    assert len({" ".join(prompt.split()[:10]) for prompt in prompts}) == 1
    assert {len(prompt.split()) for prompt in prompts} == {15}


@pytest.mark.parametrize(("requests", "expected"), [(0, 12), (5, 12), (50, 50)])
def test_a_closed_loop_has_its_rounds_or_the_requests_asked_for_whichever_is_more(requests, expected):
    assert len(jobs_of(BenchOptions(concurrency=(4,), rounds=3, requests=requests))) == expected


def test_poisson_arrivals_have_the_rate_asked_for():
    jobs = jobs_of(BenchOptions(rate=(50.0,), duration=100, prompt_tokens=1))

    assert len(jobs) == 5000
    assert jobs[-1].due == pytest.approx(100, rel=0.1)


def trace(tmp_path, name, text, **options):
    path = tmp_path / name
    path.write_text(text)
    return jobs_of(BenchOptions(trace=path, **options))


def test_a_csv_trace_is_replayed_from_its_first_arrival_in_order(tmp_path):
    jobs = trace(tmp_path, "t.csv", "TIMESTAMP,ContextTokens,GeneratedTokens\n105,20,7\n100,10,5\n", trace_speed=2)

    assert [(job.due, len(job.prompt.split()), job.output_tokens) for job in jobs] == [(0, 10, 5), (2.5, 20, 7)]


def test_a_jsonl_trace_may_count_milliseconds_and_be_clipped(tmp_path):
    rows = [
        '{"arrival": 0, "input_length": 900, "output_length": 0}',
        "",
        '{"arrival": 1500, "input_length": 3, "output_length": 4}',
    ]

    jobs = trace(tmp_path, "t.jsonl", "\n".join(rows), trace_unit="ms", max_prompt=50)

    assert [(job.due, len(job.prompt.split()), job.output_tokens) for job in jobs] == [(0, 50, 1), (1.5, 3, 4)]


def test_a_trace_may_have_iso_dates_and_be_cut_short(tmp_path):
    rows = "".join(f"2026-01-01 00:00:{second:02},1,1\n" for second in range(10))

    jobs = trace(tmp_path, "t.csv", "time,prompt_tokens,output_tokens\n" + rows, requests=4)

    assert [job.due for job in jobs] == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("t.csv", "time,prompt_tokens,output_tokens\n", "no rows"),
        ("t.csv", "time,prompt_tokens\n1,2\n", "none of the columns output_tokens"),
        ("t.csv", "time,prompt_tokens,output_tokens\nsoon,2,3\n", "neither a number nor an ISO date"),
        ("t.csv", "time,prompt_tokens,output_tokens\n1,few,3\n", "'few' is not a number of tokens"),
        ("t.jsonl", "{broken\n", "cannot be read as a trace"),
        ("t.jsonl", "[1]\n", "cannot be read as a trace"),
    ],
)
def test_a_trace_that_cannot_be_replayed_says_why(tmp_path, name, text, message):
    with pytest.raises(TraceError, match=message):
        trace(tmp_path, name, text)


def test_a_missing_trace_says_so(tmp_path):
    with pytest.raises(TraceError, match="No such file"):
        jobs_of(BenchOptions(trace=tmp_path / "none.csv"))


@pytest.mark.parametrize(
    ("option", "value"),
    [("concurrency", "1 0"), ("rate", "0"), ("output-tokens", "0"), ("rounds", "0"), ("trace-speed", "-1")],
)
def test_an_option_out_of_range_is_refused_by_name(option, value):
    result = aio("bench", "core", f"--{option}", value)
    assert result.exit_code == 2
    assert option in result.output
