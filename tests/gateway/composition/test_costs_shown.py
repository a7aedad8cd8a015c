"""What traffic costs: calculated in advance, and reported live."""

import csv
import io
import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from gateway.bench.mixed_workload import MixError, counts_of, mixed_workload
from gateway.cli import main
from gateway.routing.router import RoutingService
from tests.gateway.api.test_disconnects import only_record
from tests.gateway.running_gateway import RunningGateway
from tests.gateway.scripted_classifier import ScriptedClassifier
from tiers.catalog.load import load_catalog


def aio(*arguments: str) -> Result:
    return CliRunner().invoke(main, list(arguments))


def test_the_sources_mix_costs_what_they_say() -> None:
    shown = aio("cost")
    assert "blended: $0.00111 per request, 63% less than tier 3 alone" in shown.output
    assert "with 5% checked: $0.00151, 50% less" in shown.output
    given = json.loads(aio("cost", "--costs", "0.0001,0.0005,0.003,0.01", "--json").output)["blended"]
    assert (round(given["per_request"], 8), round(given["saving"], 4)) == (0.00111, 0.63)
    assert round(given["per_request_with_checks"], 8) == 0.00151


def test_another_mix_and_other_tokens_cost_otherwise() -> None:
    arguments = ("--mix", "0/0/0/100", "--prompt-tokens", "1000", "--answer-tokens", "100", "--baseline", "4")
    found = json.loads(aio("cost", *arguments, "--check-rate", "0", "--json").output)
    assert found["blended"]["per_request"] == pytest.approx((1000 * 3.75 + 100 * 11.25) / 1e6)
    assert found["blended"]["saving"] == 0


@pytest.mark.parametrize(
    "arguments", [("--mix", "60/20"), ("--mix", "a/b"), ("--mix", "90/20/15/5"), ("--baseline", "9"), ("--costs", "x")]
)
def test_a_mix_that_makes_no_sense_is_refused(arguments: tuple[str, ...]) -> None:
    assert aio("cost", *arguments).exit_code == 2


@pytest.mark.parametrize("total", [1, 7, 100, 997])
def test_a_generated_mix_is_within_one_prompt_of_its_shares(total: int) -> None:
    mix = (0.6, 0.2, 0.15, 0.05)
    counts = counts_of(mix, total)
    assert sum(counts) == total
    assert all(abs(count - share * total) < 1 for count, share in zip(counts, mix, strict=True))


class ByFirstWord(ScriptedClassifier):
    """Tier k is the first that is good enough for prompts that begin with k."""

    def predict(self, given):  # type: ignore[no-untyped-def]
        tier = int(given.turn.split()[0])
        self.p_ok = tuple(1.0 if k >= tier else 0.0 for k in (1, 2, 3, 4))
        return super().predict(given)


def test_a_workload_has_the_mix_that_was_asked_for_and_routing_says_so() -> None:
    routing = RoutingService(load_catalog("laptop"), {}, ByFirstWord(), None)
    prompts = [f"{number % 4 + 1} is the tier of case {number}" for number in range(400)]
    made = mixed_workload(routing, prompts, (0.6, 0.2, 0.15, 0.05), 100, seed=3)
    assert [sum(one.tier == k for one in made) for k in (1, 2, 3, 4)] == [60, 20, 15, 5]
    assert all(one.messages[0]["content"].startswith(str(one.tier)) for one in made)
    assert len({one.messages[0]["content"] for one in made}) == 100
    assert made == mixed_workload(routing, prompts, (0.6, 0.2, 0.15, 0.05), 100, seed=3)
    with pytest.raises(MixError, match="only 100 go to tier 1 and 120 are wanted"):
        mixed_workload(routing, prompts, (0.6, 0.2, 0.15, 0.05), 200)


def test_the_command_writes_what_a_back_test_reads(tmp_path: Path) -> None:
    log, made = tmp_path / "log.jsonl", tmp_path / "mix.jsonl"
    log.write_text("".join(json.dumps({"prompt": f"What is {i} plus {i + 1}?"}) + "\n" for i in range(30)))
    place = ("--data-dir", str(tmp_path))
    report = json.loads(aio("backtest", str(log), *place, "--quality", "0.95", "--json").output)
    [split] = [target["split"] for target in report["targets"]]
    tier = max(range(4), key=lambda k: split[k])
    mix = "/".join("100" if k == tier else "0" for k in range(4))
    arguments = ("--prompts", str(log), "--rows", "10", "--mix", mix, "--quality-target", "0.95")
    assert aio("bench", "mix", str(made), *arguments, *place).exit_code == 0
    again = json.loads(aio("backtest", str(made), *place, "--quality", "0.95", "--json").output)
    assert again["targets"][0]["split"][tier] == 1


@pytest.mark.asyncio(loop_scope="module")
async def test_operators_see_costs_that_are_those_of_the_records(gateway: RunningGateway) -> None:
    records = []
    for model in ("tier-1", "tier-1", "tier-3"):
        body = {"model": model, "messages": [{"role": "user", "content": "hello"}]}
        answer = await gateway.http.post("/v1/chat/completions", json=body)
        records.append(await only_record(gateway, answer.json()["id"]))
    await gateway.parts.records.flush()  # type: ignore[attr-defined]

    report = (await gateway.http.get("/admin/api/costs")).json()

    assert [(part["name"], part["spent"]["requests"]) for part in report["by_tier"]] == [("1", 2), ("3", 1)]
    total = report["total"]["spent"]
    assert round(total["cost_usd"] * 1e6) == sum(round(record.cost_usd * 1e6) for record in records)
    assert round(total["baseline_usd"] * 1e6) == sum(round(record.baseline_cost_usd * 1e6) for record in records)
    assert report["by_key"][0]["name"] is None
    sheet = csv.DictReader(io.StringIO((await gateway.http.get("/admin/api/costs?format=csv")).text))
    split = {(row["split"], row["name"]): row["requests"] for row in sheet}
    assert (split["total", ""], split["tier", "1"], split["tier", "3"]) == ("3", "2", "1")
    for wrong in ("since=x", "until=-1", "since=10&until=5", "since=nan", "tag=a%22b"):
        refused = await gateway.http.get(f"/admin/api/costs?{wrong}")
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, wrong.split("=")[0])
