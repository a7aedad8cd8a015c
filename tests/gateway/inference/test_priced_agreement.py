"""What asking several tiers at once was worth is part of the decision: in words in the record, the answer, the page of
the request and the dry run, and a past decision repeats itself."""

from typing import Any

import httpx
import pytest

from classifier.decision import PricedAgreement
from classifier.policy.agreement_counts import AgreementPlace, AgreementTable
from classifier.policy.decide import decide
from quality.records.record import Record
from tests.gateway.inference.api.test_disconnects import only_record
from tests.gateway.inference.test_compared_tiers import QUESTION, ask, say
from tests.gateway.operations.dashboard.browsing import browser, sign_in
from tests.support.app import RunningGateway
from tiers.conversation import ToolCallDelta

pytestmark = pytest.mark.asyncio(loop_scope="module")

TAKEN = "tiers 1 and 2 answer together, and tier 4 if they differ, because this has the highest utility, 0."
LEFT = "tiers 1 and 2 together, and tier 4 if they differ, would have a utility of 0."
TOOLS = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}]


@pytest.fixture(autouse=True)
def doubtful(gateway: RunningGateway) -> None:
    """No cheap tier is good enough alone, and nothing was compared before."""
    gateway.classifier.p_ok = (0.6, 0.6, 0.65, 1.0)
    gateway.serving.service.agreements.table = AgreementTable()


async def priced(gateway: RunningGateway, answer: httpx.Response) -> tuple[Record, PricedAgreement | None]:
    """The record of an answer, whose decision repeats itself, and what it says of agreement."""
    record = await only_record(gateway, answer.headers["x-aio-decision-id"])
    assert decide(record.decision.inputs) == record.decision
    assert answer.json()["x_aio"]["reason"] == record.decision.reason
    return record, record.decision.inputs.agreement


async def dry(gateway: RunningGateway, headers: dict[str, str]) -> dict[str, Any]:
    answer = await gateway.http.post("/v1/route", json={"prompt": QUESTION}, headers=headers)
    assert answer.status_code == 200, answer.text
    decision: dict[str, Any] = answer.json()["decision"]
    return decision


async def test_where_agreement_is_taken_the_decision_says_what_was_priced_and_what_won(
    gateway: RunningGateway,
) -> None:
    say(gateway, "A", "A", "", "B")
    before = await dry(gateway, {"x-aio-agree": "true"})
    answer = await ask(gateway)
    record, found = await priced(gateway, answer)
    assert found is not None
    assert (found.taken, found.tiers, found.higher, found.kind, found.alone) == (True, (1, 2), 4, "choice", 4)
    assert found.worth > found.alone_worth == pytest.approx(0.7)
    assert record.decision.reason.startswith(TAKEN)
    assert f"(tier 4 alone has {found.alone_worth:.3f}); tier 4 has the highest utility" in record.decision.reason
    assert before["reason"] == record.decision.reason
    await gateway.serving.records.flush()
    async with browser(gateway) as client:
        await sign_in(client)
        page = (await client.get(f"/admin/requests/{record.request_id}")).text
    assert TAKEN in page
    assert "best alone" in page


async def test_where_a_single_tier_answers_the_decision_says_what_agreement_would_have_been_worth(
    gateway: RunningGateway,
) -> None:
    """Tiers of the laptop have the same weights, so that more than ladders have to speak for their agreement."""
    say(gateway, "A", "A", "A", "A")
    answer = await ask(gateway, {})
    record, found = await priced(gateway, answer)
    assert found is not None
    assert not found.taken
    assert "x-aio-agreed" not in answer.headers
    assert LEFT in record.decision.reason
    assert record.decision.reason.endswith(
        ", but tiers 1 and 2 have the same weights, and 0 comparisons of such answers are verified"
    )
    assert (await dry(gateway, {}))["reason"] == record.decision.reason
    # A kind of answer that agrees too rarely is worth less than a single tier.
    table = gateway.serving.service.agreements.table
    for _ in range(200):
        table.compared(AgreementPlace("", "", "", "choice"), (1, 2), False)
    record, found = await priced(gateway, await ask(gateway))
    assert found is not None
    assert (found.taken, found.because) == (False, "")
    assert found.worth < found.alone_worth


async def test_what_only_the_answer_shows_is_in_the_decision_once_it_is_known(gateway: RunningGateway) -> None:
    gateway.classifier.p_ok = (0.84, 0.85, 0.85, 1.0)
    call = (ToolCallDelta(index=0, id="call_1", name="f", arguments="{}"),)
    for tier in gateway.tiers:
        tier.calls = call
    answer = await ask(gateway, tools=TOOLS)
    record, found = await priced(gateway, answer)
    assert answer.headers["x-aio-agreed"] == "true"
    assert found is not None
    assert (found.taken, found.kind) == (True, "tool_calls")
    assert record.decision.reason.startswith(TAKEN)
    # An open text is not compared, and so agreement was no alternative.
    for tier in gateway.tiers:
        tier.calls = ()
    say(gateway, "One moment, please.", "Wait.")
    record, found = await priced(gateway, await ask(gateway, tools=TOOLS))
    assert found is None
    assert "at once" not in record.decision.reason


async def test_where_not_even_perfect_agreement_would_pay_it_is_no_alternative(gateway: RunningGateway) -> None:
    gateway.classifier.p_ok = (0.999, 0.999, 0.999, 1.0)
    _, found = await priced(gateway, await ask(gateway, {}))
    assert found is None
