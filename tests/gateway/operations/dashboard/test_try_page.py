"""The page Try: the route of a prompt without a model, answers side by side, and a person's label of them."""

import re
from html import unescape
from typing import Any

import httpx
import msgspec
import pytest
from sqlalchemy import func, select

from classifier.complexity.classes import Complexity
from classifier.policy.experiment_split import Arm, Split
from gateway.admin.tryout import EVENTS_TYPE, EXAMPLES
from migrations.tables.audit import audit_events
from migrations.tables.quality import training_rows, verifications
from migrations.tables.requests import requests
from quality.records.record import TRIED_OUT
from quality.verification.sampling import refusal
from tests.gateway.inference.api.test_disconnects import only_record
from tests.gateway.operations.dashboard.browsing import browser, forms_of, sign_in, submit, with_user
from tests.support.app import RunningGateway

pytestmark = pytest.mark.asyncio(loop_scope="module")
ADMIN = "test-admin-07158b06243a3ef4b8e7746013aa659a"
SETTINGS = {"admin_keys": f"ann={ADMIN}"}
PAGE, ASK, VERDICT = "/admin/try", "/admin/try/ask", "/admin/try/verdict"
SCRIPT = "<script>alert(1)</script>"


@pytest.fixture(autouse=True)
def _scripts(aio: RunningGateway) -> None:
    """Tier 2 is good enough, tier 1 is not."""
    aio.reset()
    aio.classifier.p_ok = (0.2, 0.98, 0.99, 1.0)


async def filled(client: httpx.AsyncClient, **fields: str) -> dict[str, str]:
    """The form as its page shows it, with these fields."""
    return forms_of(await client.get(PAGE))[PAGE]["fields"] | {"prompt": "What is a hash table?"} | fields


async def asked(client: httpx.AsyncClient, **fields: str) -> httpx.Response:
    return await client.post(ASK, data=await filled(client, **fields))


async def made_key(admin: httpx.AsyncClient, name: str, **terms: Any) -> dict[str, Any]:
    token = {"x-csrf-token": forms_of(await admin.get(PAGE))[PAGE]["fields"]["csrf_token"]}
    answer = await admin.post("/admin/api/keys", json={"name": name, **terms}, headers=token)
    assert answer.status_code in (200, 201), answer.text
    made: dict[str, Any] = answer.json()
    return made


async def bound(admin: httpx.AsyncClient, key: str, usd: float) -> None:
    token = {"x-csrf-token": forms_of(await admin.get(PAGE))[PAGE]["fields"]["csrf_token"]}
    order = {"kind": "key", "subject": key, "period": "total", "amount_usd": usd, "reason": "a test"}
    answer = await admin.put("/admin/api/budgets", json=order, headers=token)
    assert answer.status_code == 200, answer.text


async def tried_events(aio: RunningGateway) -> list[Any]:
    query = select(audit_events).where(audit_events.c.action == "answer.tried").order_by(audit_events.c.created_at)
    async with aio.serving.database.connect() as connection:
        return list((await connection.execute(query)).all())


async def test_it_is_the_second_entry_and_has_examples_of_each_class(admin: httpx.AsyncClient) -> None:
    page = await admin.get(PAGE)
    assert page.status_code == 200
    entries = page.text.split('aria-label="Pages"')[1].split("</nav>")[0].split("<li>")
    assert f'href="{PAGE}"' in entries[2]
    assert {name for name, _ in EXAMPLES} == set(Complexity.__members__)
    assert page.text.count('name="example"') == len(EXAMPLES)
    assert page.text.count("<script") == 1


async def test_the_route_is_shown_without_asking_recording_or_writing_anything(
    aio: RunningGateway, admin: httpx.AsyncClient
) -> None:
    async with aio.serving.database.connect() as connection:
        before = await connection.scalar(select(func.count()).select_from(audit_events))
    shown = await admin.post(PAGE, data=await filled(admin, prompt=SCRIPT))
    assert shown.status_code == 200
    assert "Route: tier-2" in shown.text
    assert "20.0%" in shown.text
    assert "98.0%" in shown.text
    assert "its utility is" in shown.text
    assert SCRIPT not in shown.text
    assert not any(tier.requests for tier in aio.tiers)
    async with aio.serving.database.connect() as connection:
        assert await connection.scalar(select(func.count()).select_from(audit_events)) == before
    at_least = await admin.post(PAGE, data=await filled(admin, quality_target="1"))
    assert "Route: tier-4" in at_least.text


async def test_an_example_fills_in_the_form_and_is_routed(aio: RunningGateway, admin: httpx.AsyncClient) -> None:
    fields = await filled(admin, example="3")
    del fields["prompt"]
    shown = await admin.post(PAGE, data=fields)
    assert shown.status_code == 200
    assert f">{EXAMPLES[3][1]}</textarea>" in shown.text.replace("&#39;", "'")
    assert aio.classifier.seen[-1].turn == EXAMPLES[3][1]


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"prompt": " "}, "Write a prompt first"),
        ({"key": "nobody"}, "There is no such key"),
        ({"quality_target": "2"}, "quality_target"),
        ({"max_tokens": "0"}, "max_tokens"),
    ],
)
async def test_what_is_wrong_stands_at_its_field_and_nothing_is_asked(
    aio: RunningGateway, admin: httpx.AsyncClient, wrong: dict[str, str], said: str
) -> None:
    for path in (PAGE, ASK):
        shown = await admin.post(path, data=await filled(admin, **wrong))
        assert shown.status_code == 400
        assert said in shown.text
        assert 'aria-invalid="true"' in shown.text
    assert not any(tier.requests for tier in aio.tiers)


async def test_an_arm_of_an_experiment_is_not_called_the_choice_of_routing(
    aio: RunningGateway, admin: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    split = Split(experiment_id="x", share=1.0, a=Arm(tier=1), b=Arm(tier=3))
    monkeypatch.setattr(aio.serving.routing.classifier, "split", lambda: split)
    shown = (await admin.post(PAGE, data=await filled(admin))).text
    arm = re.findall(r"<h2>Arm ([ab]) of an experiment: tier-([13])</h2>", shown)
    assert arm in ([("a", "1")], [("b", "3")])
    assert 'href="/admin/experiments">experiment</a> has this request' in shown
    answers = unescape((await asked(admin)).text)
    assert re.search(r"arm [ab] of an experiment <small", answers)
    assert "routing's choice" not in answers
    monkeypatch.undo()
    assert "routing's choice" in unescape((await asked(admin)).text)


async def test_both_answers_are_billed_to_who_asks_and_written_down(
    aio: RunningGateway, admin: httpx.AsyncClient
) -> None:
    made = await made_key(admin, "shop")
    aio.tier(2).words, aio.tier(4).words = ("a", " cheap", " one"), ("a", " strong", " one")
    shown = await asked(admin, key="shop", system="Be brief.")
    assert shown.status_code == 200
    assert "a cheap one" in shown.text
    assert "a strong one" in shown.text
    assert [message.text for message in aio.tier(2).requests[0].messages or ()] == [
        "Be brief.", "What is a hash table?",
    ]  # fmt: skip
    assert not aio.tier(1).requests
    assert not aio.tier(3).requests
    event = (await tried_events(aio))[-1]
    assert (event.actor, event.details["key"]) == ("ann", made["key_id"])
    assert set(event.details["requests"]) == {"tier-2", "tier-4"}
    for name, request_id in event.details["requests"].items():
        record = await only_record(aio, request_id)
        assert (f"tier-{record.tier}", record.key_id, record.tags) == (name, "ann", {TRIED_OUT: made["key_id"]})
        assert record.cost_usd > 0
        assert refusal(record) == "tried out"
        assert refusal(msgspec.structs.replace(record, tags=None)) is None
    assert "Hash" not in str(event.details)
    assert "hash" not in str(event.details)


async def test_a_budget_is_that_of_who_asks_not_that_of_the_simulated_key(
    aio: RunningGateway, admin: httpx.AsyncClient
) -> None:
    poor = await made_key(admin, "poor")
    chief = await made_key(admin, "chief", terms={"scopes": ["admin"]})
    await bound(admin, "poor", 0.000001)
    assert "exceeded your current quota" not in (await asked(admin, key="poor")).text
    await bound(admin, "chief", 0.000001)
    async with browser(aio) as client:
        await sign_in(client, chief["key"])
        refused = await asked(client, key="poor")
    assert refused.text.count("You exceeded your current quota") == 2
    assert "budget of key chief" in refused.text
    assert [len(aio.tier(number).requests) for number in (2, 4)] == [1, 1]
    assert poor["key_id"] != chief["key_id"]


async def test_only_tiers_that_may_see_the_keys_requests_see_it(aio: RunningGateway, admin: httpx.AsyncClient) -> None:
    await made_key(admin, "narrow", terms={"tiers": [1, 2]})
    shown = await asked(admin, key="narrow")
    assert len(aio.tier(2).requests) == 1
    assert not aio.tier(4).requests
    assert "does not have access" in shown.text
    assert VERDICT not in forms_of(shown)


async def test_both_answers_stream_as_lines_and_end_with_the_page(
    aio: RunningGateway, admin: httpx.AsyncClient
) -> None:
    aio.tier(2).words, aio.tier(4).words = ("a", " cheap", " one"), ("a", " strong", " one")
    # The first answer is held at its second word until the second one was read whole.
    aio.tier(2).hold_at = 1
    text, lines = {0: "", 1: ""}, []
    data = await filled(admin)
    async with admin.stream("POST", ASK, data=data, headers={"accept": EVENTS_TYPE}) as answer:
        assert answer.headers["content-type"].startswith(EVENTS_TYPE)
        async for line in answer.aiter_lines():
            lines.append(msgspec.json.decode(line))
            if "place" in lines[-1]:
                text[lines[-1]["place"]] += lines[-1]["text"]
            if text == {0: "a", 1: "a strong one"}:
                aio.tier(2).go.set()
    assert text == {0: "a cheap one", 1: "a strong one"}
    assert "Answering" in lines[0]["html"]
    assert "Route: tier-2" in lines[0]["html"]
    assert "a cheap one" in lines[-1]["html"]
    assert 'action="/admin/try/verdict"' in lines[-1]["html"]


async def test_a_reader_who_leaves_ends_both_answers(aio: RunningGateway, admin: httpx.AsyncClient) -> None:
    for number in (2, 4):
        aio.tier(number).hold_at = 1
    async with admin.stream("POST", ASK, data=await filled(admin), headers={"accept": EVENTS_TYPE}) as answer:
        await anext(answer.aiter_lines())
        for number in (2, 4):
            await aio.tier(number).holding.wait()
    for number in (2, 4):
        await aio.tier(number).ended.wait()
        assert aio.tier(number).closed_early == 1


async def test_a_failure_of_one_tier_leaves_the_other_answer(aio: RunningGateway, admin: httpx.AsyncClient) -> None:
    aio.tier(4).fail_at = 1
    shown = await asked(admin)
    assert "Hello there, how are you?" in shown.text
    assert shown.text.count('class="problem"') == 1
    assert VERDICT not in forms_of(shown)


async def test_a_verdict_is_a_persons_label_of_the_cheaper_answer_for_the_simulated_key(
    aio: RunningGateway, admin: httpx.AsyncClient
) -> None:
    made = await made_key(admin, "labelled")
    for better, label in (("cheaper", "no_worse"), ("equal", "no_worse"), ("strongest", "worse")):
        shown = await asked(admin, key="labelled")
        request_id = forms_of(shown)[VERDICT]["fields"]["request_id"]
        await only_record(aio, request_id)
        done = await submit(admin, shown, VERDICT, better=better)
        assert (done.status_code, done.headers["location"]) == (303, PAGE)
        async with aio.serving.database.connect() as connection:
            query = select(verifications).where(verifications.c.request_id == request_id)
            row = (await connection.execute(query)).one()
            probes = select(func.count()).select_from(training_rows).where(training_rows.c.source == "probe")
            assert await connection.scalar(probes) == 0
        assert (row.key_id, row.tier, row.label, row.judge, row.sampled_reason) == (
            made["key_id"], 2, label, "user", "feedback",
        )  # fmt: skip
    assert (await submit(admin, shown, VERDICT, better="splendid")).status_code == 400
    events = (await admin.get("/admin/api/transitions", params={"action": "answer.reviewed"})).json()["rows"]
    assert {event["actor"] for event in events} == {"ann"}


async def test_without_the_keys_consent_there_is_no_label_and_no_text_is_kept(
    aio: RunningGateway, admin: httpx.AsyncClient
) -> None:
    await made_key(admin, "silent", terms={"consent": False})
    shown = await asked(admin, key="silent")
    assert VERDICT not in forms_of(shown)
    assert "no verdict is kept" in shown.text
    request_id = (await tried_events(aio))[-1].details["requests"]["tier-2"]
    record = await only_record(aio, request_id)
    assert record.messages is None
    assert record.answer is None
    token = {"csrf_token": (await filled(admin))["csrf_token"]}
    forced = await admin.post(VERDICT, data=token | {"request_id": request_id, "better": "cheaper"})
    assert forced.status_code == 409


async def test_only_admins_ask_with_their_token_and_label_what_they_asked(
    aio: RunningGateway, admin: httpx.AsyncClient
) -> None:
    shown = await asked(admin)
    theirs = {"request_id": forms_of(shown)[VERDICT]["fields"]["request_id"], "better": "cheaper"}
    without = {"prompt": "What?", "max_tokens": "8"}
    assert (await admin.post(ASK, data=without)).status_code == 403
    assert (await admin.post(VERDICT, data=theirs)).status_code == 403
    before = len(await tried_events(aio))
    for name, role in (("vera", "viewer"), ("oscar", "operator")):
        async with with_user(aio, name, role) as other:  # type: ignore[arg-type]
            seen = await other.post(PAGE, data=await filled(other))
            assert "Route: tier-2" in seen.text
            assert ASK not in seen.text
            assert (await asked(other)).status_code == 403
    async with with_user(aio, "ada", "admin") as other:
        token = {"csrf_token": (await filled(other))["csrf_token"]}
        assert (await other.post(VERDICT, data=theirs | token)).status_code == 404
        answer = await aio.openai.chat.completions.create(
            model="tier-1", messages=[{"role": "user", "content": "Hi"}], extra_headers=await _key_of(admin)
        )
        assert (await other.post(VERDICT, data=token | theirs | {"request_id": answer.id})).status_code == 404
        await asked(other)
    events = await tried_events(aio)
    assert [event.actor for event in events[before:]] == ["user:ada"]
    async with aio.serving.database.connect() as connection:
        labelled = select(func.count()).where(verifications.c.request_id == theirs["request_id"])
        assert await connection.scalar(labelled) == 0


async def _key_of(admin: httpx.AsyncClient) -> dict[str, str]:
    return {"authorization": f"Bearer {(await made_key(admin, 'any'))['key']}"}


async def test_a_strongest_choice_is_compared_with_the_next_cheaper_tier(
    aio: RunningGateway, admin: httpx.AsyncClient
) -> None:
    aio.classifier.p_ok = (0.1, 0.1, 0.1, 1.0)
    shown = await asked(admin)
    text = unescape(shown.text)
    assert "Route: tier-4" in text
    assert "the next cheaper one <small" in text
    assert "the strongest and routing's choice <small" in text
    assert [len(tier.requests) for tier in aio.tiers] == [0, 0, 1, 1]
    request_id = forms_of(shown)[VERDICT]["fields"]["request_id"]
    assert (await only_record(aio, request_id)).tier == 3
    done = await submit(admin, shown, VERDICT, better="strongest")
    assert done.status_code == 303
    await aio.serving.records.flush()  # type: ignore[attr-defined]
    async with aio.serving.database.connect() as connection:
        assert await connection.scalar(select(func.count()).select_from(requests)) > 0
