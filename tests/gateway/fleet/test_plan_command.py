"""`aio plan`: from options to a plan, as text and as JSON; the page shows what the command prints."""

import json
from pathlib import Path

from click.testing import CliRunner

from gateway.cli.planning.plan import plan

PAGE = Path(__file__).parents[3] / "docs" / "capacity.md"


def run(*arguments: str) -> str:
    result = CliRunner().invoke(plan, arguments, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


def test_a_plan_in_json_has_load_objectives_and_figures():
    found = json.loads(run("--rate", "100", "--ttft-ms", "500", "--replica", "llama-3.1-8b/awq-int4/l4", "--json"))
    assert found["load"]["rate"] == 100
    assert found["objectives"]["ttft_s"] == 0.5
    assert found["plan"]["replicas"] > 0
    assert found["plan"]["each"]["ttft_s"] <= 0.5


def test_a_days_requests_at_a_peak_are_planned_by_the_second():
    found = json.loads(run("--per-day", "86400", "--peak", "3", "--json"))
    assert found["load"]["rate"] == 3


def test_a_trace_of_ones_own_is_planned(tmp_path):
    trace = tmp_path / "mine.csv"
    trace.write_text("timestamp,prompt_tokens,output_tokens\n" + "".join(f"{s},100,20\n" for s in range(60)))
    assert json.loads(run("--trace", str(trace), "--json"))["load"]["output_tokens"] == 20


def test_a_price_of_ones_own_is_taken():
    one, two = (json.loads(run("--rate", "1", "--usd-per-hour", usd, "--json"))["plan"] for usd in ("1", "2"))
    assert two["usd_per_month"] == 2 * one["usd_per_month"]


def test_one_rate_and_one_only_is_wanted():
    for arguments in ((), ("--rate", "1", "--per-day", "1")):
        result = CliRunner().invoke(plan, arguments)
        assert result.exit_code == 2
        assert "one of --rate" in result.output


def test_the_page_shows_what_the_command_prints():
    assert run("--sources").strip() in PAGE.read_text(encoding="utf-8")
