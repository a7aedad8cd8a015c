"""The review queue: answers judged worse next to the verifier's, and an operator's verdict replaces the judge's."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from sqlalchemy import event, insert, select

from migrations.tables.quality import verifications
from tests.gateway.inference.api.test_disconnects import only_record
from tests.gateway.operations.dashboard.browsing import forms_of, submit, with_user
from tests.support.app import RunningGateway

pytestmark = pytest.mark.asyncio(loop_scope="module")
PAGE = "/admin/quality/review"
SCRIPT = "<script>alert(1)</script>"


async def judged_worse(
    aio: RunningGateway, at: float, tier: int = 1, text: str | None = SCRIPT, label: str = "worse"
) -> str:
    """A request answered by tier 1, with a verification of `tier` that has the verifier's `text` and this `label`."""
    body = {"model": "tier-1", "messages": [{"role": "user", "content": SCRIPT}]}
    answer = await aio.http.post("/v1/chat/completions", json=body)
    await only_record(aio, answer.headers["x-aio-decision-id"])
    # Only what is stored is verified.
    await aio.serving.records.flush()  # type: ignore[attr-defined]
    request_id = str(answer.json()["id"])
    row = {
        "request_id": request_id, "tier": tier, "model": "m", "sampled_probability": 1.0, "sampled_reason": "sample",
        "status": "done", "judge": "exact", "label": label, "verifier_answer": text, "reason": SCRIPT,
        "cost_usd": 0.0, "reserved_usd": 0.0, "attempts": 1, "created_at": at, "finished_at": at,
    }  # fmt: skip
    async with aio.serving.database.begin() as connection:
        await connection.execute(insert(verifications).values(row))
    return request_id


async def verifiers_answer(aio: RunningGateway, request_id: str) -> str | None:
    query = select(verifications.c.verifier_answer).where(verifications.c.request_id == request_id)
    async with aio.serving.database.connect() as connection:
        text: str | None = await connection.scalar(query)
    return text


async def label_of(aio: RunningGateway, request_id: str) -> tuple[str, str]:
    query = select(verifications.c.label, verifications.c.judge).where(verifications.c.request_id == request_id)
    async with aio.serving.database.connect() as connection:
        row = (await connection.execute(query)).one()
    return row.label, row.judge


@contextmanager
def reads_of(aio: RunningGateway) -> Iterator[list[str]]:
    """The queries for verifications and requests."""
    asked: list[str] = []

    def note(_connection: Any, _cursor: Any, statement: str, *_: Any) -> None:
        if statement.startswith(("SELECT", "WITH")) and ("verifications" in statement or "requests" in statement):
            asked.append(statement)

    event.listen(aio.serving.database.sync_engine, "before_cursor_execute", note)
    yield asked
    event.remove(aio.serving.database.sync_engine, "before_cursor_execute", note)


async def test_an_operator_reviews_one_after_the_other_and_a_viewer_looks_on(aio: RunningGateway) -> None:
    async with with_user(aio, "oscar", "operator") as operator, with_user(aio, "vera", "viewer") as viewer:
        assert "Nothing left to review" in (await operator.get(PAGE)).text
        older, newer = await judged_worse(aio, 1e9), await judged_worse(aio, 2e9)
        without_text, other_tier = await judged_worse(aio, 3e9, text=None), await judged_worse(aio, 4e9, tier=2)

        seen = await viewer.get(PAGE)
        assert newer in seen.text
        listed = (await viewer.get("/admin/api/reviews")).json()
        assert [row["request_id"] for row in listed["rows"]] == [newer, older]
        assert SCRIPT not in {row.get("verifier_answer") for row in listed["rows"]}, "texts one at a time"
        sheet = (await viewer.get("/admin/api/reviews?format=csv")).text
        assert len(sheet.strip().splitlines()) == 3
        skip = "cursor" + seen.text.split(f'href="{PAGE}?cursor')[1].split('"')[0]
        assert older in (await viewer.get(f"{PAGE}?{skip}")).text
        assert not [action for action in forms_of(seen) if action.startswith(PAGE)]
        assert seen.text.count("<script") == 1
        assert seen.text.count("&lt;script&gt;alert(1)&lt;/script&gt;") >= 3, "prompt, verifier's answer, reason"

        page = await operator.get(PAGE)
        action = next(one for one in forms_of(page) if one.startswith(PAGE))
        token = {"csrf_token": forms_of(seen)["/admin/logout"]["fields"]["csrf_token"]}
        assert (await viewer.post(action, data=token | {"verdict": "tie"})).status_code == 403
        assert (await operator.post(action, data={"verdict": "tie"})).status_code == 403, "no token"
        assert (await submit(operator, page, action, verdict="splendid")).status_code == 400
        assert (await submit(operator, page, action)).status_code == 400
        assert await label_of(aio, newer) == ("worse", "exact")

        done = await submit(operator, page, action, verdict="tie", comment=SCRIPT)
        assert (done.status_code, done.headers["location"]) == (303, PAGE)
        assert await label_of(aio, newer) == ("no_worse", "user")
        page = await operator.get(PAGE)
        assert older in page.text
        action = next(one for one in forms_of(page) if one.startswith(PAGE))
        assert (await submit(operator, page, action, verdict="worse")).status_code == 303
        assert await label_of(aio, older) == ("worse", "user")
        assert await verifiers_answer(aio, older) == SCRIPT
        assert "Nothing left to review" in (await operator.get(PAGE)).text
        for left in (without_text, other_tier):
            assert await label_of(aio, left) == ("worse", "exact")

    events = (await aio.http.get("/admin/api/transitions", params={"action": "answer.reviewed"})).json()["rows"]
    assert [(one["actor"], one["subject"], one["reason"]) for one in events] == [
        ("user:oscar", older, None), ("user:oscar", newer, SCRIPT),
    ]  # fmt: skip
    assert events[1]["details"] == {
        "tier": 1,
        "before": {"label": "worse", "judge": "exact"},
        "after": {"label": "no_worse", "judge": "user", "score": 0.5},
    }


async def test_programs_review_too_and_get_errors_for_impossible_reviews(aio: RunningGateway) -> None:
    good, without_text = await judged_worse(aio, 5e9), await judged_worse(aio, 6e9, text=None)
    rows = (await aio.http.get("/admin/api/verifications", params={"limit": 2})).json()["rows"]
    numbers = {row["request_id"]: row["verification_id"] for row in rows}
    for number, body, status in (
        (numbers[good], {"verdict": "no_worse"}, 200),
        (numbers[without_text], {"verdict": "no_worse"}, 409),
        (numbers[good], {"verdict": "splendid"}, 400),
        (999_999, {"verdict": "worse"}, 404),
    ):
        answer = await aio.http.post(f"/admin/api/verifications/{number}/review", json=body)
        assert answer.status_code == status, answer.text
    assert await label_of(aio, good) == ("no_worse", "user")
    assert await label_of(aio, without_text) == ("worse", "exact")


async def test_answers_on_which_opinions_differ_have_a_queue_of_their_own(aio: RunningGateway) -> None:
    uncertain = await judged_worse(aio, 6.5e9, label="uncertain")
    async with with_user(aio, "olga", "operator") as operator:
        assert uncertain not in (await operator.get(PAGE)).text
        assert (await operator.get(PAGE, params={"label": "splendid"})).status_code == 400
        listed = (await operator.get("/admin/api/reviews", params={"label": "uncertain"})).json()
        assert [row["request_id"] for row in listed["rows"]] == [uncertain]

        page = await operator.get(PAGE, params={"label": "uncertain"})
        action = next(one for one in forms_of(page) if one.startswith(PAGE))
        done = await submit(operator, page, action, verdict="worse")
        assert (done.status_code, done.headers["location"]) == (303, f"{PAGE}?label=uncertain")
        assert await label_of(aio, uncertain) == ("worse", "user")
        assert "Nothing left to review" in (await operator.get(PAGE, params={"label": "uncertain"})).text


async def test_a_cursor_that_no_page_gave_is_refused(aio: RunningGateway) -> None:
    async with with_user(aio, "vito", "viewer") as viewer:
        assert (await viewer.get(PAGE, params={"cursor": "x"})).status_code == 400


async def test_many_answers_are_listed_by_as_many_queries_as_one(aio: RunningGateway) -> None:
    async with with_user(aio, "walt", "viewer") as viewer:
        counts, listed = [], []
        for more in (1, 5):
            for _ in range(more):
                await judged_worse(aio, 7e9)
            for path in (PAGE, "/admin/api/reviews"):
                with reads_of(aio) as asked:
                    answer = await viewer.get(path)
                assert answer.status_code == 200
                counts.append(len(asked))
            listed.append(len(answer.json()["rows"]))
    assert listed[1] == listed[0] + 5
    assert counts[:2] == counts[2:]
