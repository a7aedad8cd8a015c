"""What traffic costs: calculated in advance, and reported live."""

import csv
import io
import json

import pytest

from tests.gateway.in_process_cli import aio
from tests.gateway.inference.api.test_disconnects import only_record
from tests.support.app import RunningGateway


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


@pytest.mark.asyncio(loop_scope="module")
async def test_operators_see_costs_that_are_those_of_the_records(gateway: RunningGateway) -> None:
    records = []
    for model in ("tier-1", "tier-1", "tier-3"):
        body = {"model": model, "messages": [{"role": "user", "content": "hello"}]}
        answer = await gateway.http.post("/v1/chat/completions", json=body)
        records.append(await only_record(gateway, answer.json()["id"]))
    await gateway.serving.records.flush()  # type: ignore[attr-defined]

    report = (await gateway.http.get("/admin/api/report")).json()["cost"]["costs"]

    assert [(part["name"], part["spent"]["requests"]) for part in report["by_tier"]] == [("1", 2), ("3", 1)]
    total = report["total"]["spent"]
    assert total["cost_usd"] == pytest.approx(sum(record.cost_usd for record in records))
    assert total["baseline_usd"] == pytest.approx(sum(record.baseline_cost_usd for record in records))
    assert report["by_key"][0]["name"] is None
    sheet = csv.DictReader(io.StringIO((await gateway.http.get("/admin/api/report?format=csv")).text))
    split = {(row["split"], row["name"]): row["requests"] for row in sheet}
    assert (split["total", ""], split["tier", "1"], split["tier", "3"]) == ("3", "2", "1")
