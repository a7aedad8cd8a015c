"""Headline figures of pages are those of the stored rows, with their conditions, and the same on every page."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from benchmarks.cascade.savings import LADDERS, SavingResults
from benchmarks.core.speculation import SpeculationResults
from benchmarks.report.markdown import number, times
from benchmarks.report.measurement import read_results, rows_of
from benchmarks.report.peer_tables import results_of
from benchmarks.sources.ages import read_marks

ROOT = Path(__file__).parents[1]
MEASUREMENTS = ROOT / "docs" / "measurements"
HEADLINE = "mmlu_pro, two makers"
# The list of requirements names files in its tests; all other pages state figures.
HAND_WRITTEN = sorted(page for page in (ROOT / "docs").rglob("*.md") if page.name != "requirements.md")


def text_of(page: str) -> str:
    """The page in one line, so that a sentence is found however it is broken."""
    return " ".join((ROOT / page).read_text(encoding="utf-8").split())


def section(page: str, title: str) -> str:
    """A section of the page, up to the next of its kind."""
    after = text_of(page).split(f" {title} ", 1)[1]
    return re.split(r" #{2,3} ", after, maxsplit=1)[0]


@pytest.fixture(scope="module")
def savings() -> SavingResults:
    stored = read_results(MEASUREMENTS, "savings", SavingResults)
    assert stored is not None
    return stored[1]


def test_the_headline_of_the_readme_and_the_report_is_the_stored_saving_with_its_condition(
    savings: SavingResults,
) -> None:
    one = next(each for each in savings.savings if each.ladder == HEADLINE)
    readme, report = text_of("README.md"), text_of("docs/results/report.md")
    kept = f"kept {savings.enough:.0%} of GPT-4o's quality at {one.cost_at_98:.0%} of its cost"
    assert kept in readme
    assert f"alone needs {one.lottery_cost_at_98:.0%} of the cost" in readme
    assert f"On {one.prompts:,} recorded prompts" in readme
    assert f"{HEADLINE} {1 - one.cost_at_98:.0%}, " in report
    assert "every request asked for this comparison (`x-aio-agree: true`), which is not the default" in readme
    assert "every request asks for agreement, which is not the default" in report


def test_the_worst_ladder_is_among_the_ranges_that_pages_state(savings: SavingResults) -> None:
    costs = [each.cost_at_98 for each in savings.savings]
    lottery = [each.lottery_cost_at_98 for each in savings.savings]
    assert [each.ladder for each in savings.savings] == list(LADDERS)
    assert len(costs) == 6
    assert f"On six such ladders the cost is {min(costs):.0%} to {max(costs):.0%}" in text_of("README.md")
    quality = section("docs/results/quality.md", "## In one table")
    assert (
        f"{min(costs):.0%}".rstrip("%")
        + f" to {max(costs):.0%} of its cost | {min(lottery):.0%}".rstrip("%")
        + f" to {max(lottery):.0%} by a lottery"
    ) in quality
    assert "six ladders of three tiers" in quality


def test_a_decision_takes_the_same_stored_time_on_every_page() -> None:
    stored = json.loads((MEASUREMENTS / "route.json").read_text(encoding="utf-8"))["decision"]
    cpu, wall = stored["cpu_ms"], stored["wall_ms"]
    performance = section("docs/results/performance.md", "## Routing")
    whole = " | ".join(f"{cpu[name]:.3f}" for name in ("p50", "p90", "p99"))
    assert f"| the whole decision | {whole} |" in performance
    assert f"By the wall clock the p99 is {wall['p99']:.2f} ms" in performance
    assert f"p99 of {wall['p99']:.2f} ms for 512 tokens" in text_of("docs/results/requirements.md")
    quality = section("docs/results/quality.md", "## In one table")
    assert f"| {cpu['p50']:.2f}, {cpu['p99']:.2f} ms; " in quality
    busy = rows_of(MEASUREMENTS / "route-busy.jsonl")
    for tokens in (512, 64):
        ends = {
            name: [row["decision"]["cpu_ms"][name] for row in busy if row["tokens"] == tokens]
            for name in ("p50", "p90", "p99")
        }
        ranges = {name: f"{min(found):.2f} to {max(found):.2f}" for name, found in ends.items()}
        assert f"| {tokens} | {' | '.join(ranges.values())} |" in performance
        assert f"{ranges['p50']}, {ranges['p99']} ms" in quality


def test_the_short_table_of_performance_names_every_peer_of_its_run_with_the_rows_figures() -> None:
    rows = [row for row in rows_of(MEASUREMENTS / "peers-amx.jsonl") if "transport" in row]
    assert results_of(rows).goals
    found = {(row["load"], row["transport"], row["concurrency"], row["system"]): row for row in rows}

    def speeds(transport: str, system: str) -> str:
        loads = ((1, "one stream"), (8, "many streams"), (32, "many streams"))
        return ", ".join(number(found[load, transport, count, system]["out_tok_s"]) for count, load in loads)

    def waits(transport: str, system: str) -> str:
        row = found["many streams", transport, 32, system]
        return f"{number(row['ttft_p50_ms'])}, {number(row['ttft_p99_ms'])} ms"

    def long(system: str) -> str:
        return number(found["long prompt", "http", 1, system]["out_tok_s"])

    def whole(target: str) -> str:
        gateways: list[dict[str, Any]] = rows_of(MEASUREMENTS / "peers-amx.jsonl")
        return next(
            f"{row['req_s']:,.0f}"
            for row in gateways
            if (row.get("target"), row.get("api"), row.get("stream")) == (target, "/v1/chat/completions", False)
        )

    short = section("docs/results/performance.md", "## In short")
    assert "2026-11-28" in short
    for line in (
        f"| {speeds('in process', 'aio')} | OpenVINO GenAI {speeds('in process', 'openvino')} |",
        f"| {speeds('http', 'aio')} | llama.cpp {speeds('http', 'llama.cpp')}; vLLM {speeds('http', 'vllm')} |",
        f"| {long('aio')} | llama.cpp {long('llama.cpp')}; vLLM {long('vllm')} |",
        f"| {waits('in process', 'aio')} | OpenVINO GenAI {waits('in process', 'openvino')} |",
        f"| {waits('http', 'aio')} | llama.cpp {waits('http', 'llama.cpp')}; vLLM {waits('http', 'vllm')} |",
        f"| {whole('aio')} | Switchyard (Rust) {whole('switchyard')}; Portkey {whole('portkey')}; "
        f"LiteLLM {whole('litellm')} |",
    ):
        assert line in short


def test_what_each_way_of_quantising_loses_is_the_same_on_every_page() -> None:
    stored = read_results(MEASUREMENTS, "quantised", dict[str, list[dict[str, Any]]])
    assert stored is not None
    core = section("docs/results/core.md", "## Quantisers on SmolLM2-135M-Instruct")
    ways = {row["way"]: row for row in stored[1]["rows"]}
    for row in ways.values():
        near = f"{row['hidden_cosine']:.3f} | {row['top1']:.1%}"
        assert f"| {row['perplexity_rise']:+.1%} | {near} | {row['right']} |" in core, row["way"]
    awq, rounded = ways["AWQ, 4 bits"], ways["RTN, 4 bits"]
    assert (
        f"AWQ loses {awq['perplexity_rise']:.1%} of perplexity where rounding loses {rounded['perplexity_rise']:.1%}, "
        f"it keeps {awq['right']} of {awq['questions']} sums where rounding keeps {rounded['right']}"
    ) in text_of("docs/results/requirements.md")


def test_the_page_on_drafts_shows_every_stored_gain_and_loss() -> None:
    page = section("docs/reference/engine.md", "### What drafts gain and lose")
    losses = 0
    for name in ("lookup", "draft", "workloads"):
        stored = read_results(MEASUREMENTS, name, SpeculationResults)
        assert stored is not None
        for worth in stored[1].worth:
            assert worth.ratio is not None
            assert times(worth.ratio) in page, (name, worth.workload, worth.level, worth.mode)
            losses += worth.ratio.median < 1
    assert losses >= 5


def test_the_speed_of_fp8_on_a_card_is_said_of_one_stream_and_of_many() -> None:
    rows = rows_of(MEASUREMENTS / "gpu-h200.jsonl")
    speeds = {(row["stage"], row["concurrency"]): row["out_tok_s"] for row in rows if "out_tok_s" in row}
    alone = speeds["8b-fp8-one-stream", 1] / speeds["8b-bf16-one-stream", 1]
    many = speeds["8b-fp8-256", 64] / speeds["8b-bf16-256", 64]
    said = f"{alone:.2f} times the tokens/s of BF16 for one stream, and {many:.2f} times with 64 streams"
    assert said in text_of("docs/results/performance-gpu.md")
    both = f"{alone:.2f}× of BF16, one answer at a time on one H200, {many:.2f}× with 64"
    assert both in text_of("docs/results/report.md")


@pytest.mark.parametrize("page", HAND_WRITTEN, ids=lambda page: page.name)
def test_a_section_that_rests_on_an_old_measurement_says_so(page: Path) -> None:
    marked = read_marks(MEASUREMENTS)
    unfenced = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    for part in re.split(r"^(?=##+ )", unfenced, flags=re.MULTILINE):
        named = set(re.findall(r"[\w-]+\.jsonl?\b", part)) & marked.keys()
        assert not named or re.search(r"\bold\b", part, re.IGNORECASE), (part.splitlines()[0], named)
