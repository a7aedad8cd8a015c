"""Labels: operators' verdicts on judged answers (`/admin/api/reviews`), which they read one at a time next to the
verifier's; the labels that routing follows, how many count, and their reset; imported labels, shown by their import
and deleted with it (`/admin/api/outcomes/imports`).
"""

import time
from typing import Annotated, Any, Literal

import msgspec
from litestar import delete, get, post
from litestar.params import FromPath, FromQuery, JSONBody
from litestar.response import Response
from msgspec import Meta

from gateway.admin.resource import Admin, AsCsv, json_or_csv
from gateway.base.errors import ApiError, bad_request
from gateway.base.stores.database import reached
from gateway.edge.asgi import HttpRequest
from gateway.inference.service import Serving
from gateway.operations.dashboard.html.forms import form_of, given_of, parse_form
from gateway.operations.dashboard.html.rendering import back_to, page
from gateway.operations.labels.active_labels import ActiveLabels
from gateway.operations.running import Operations
from gateway.tenancy.admin_guard import OPERATOR
from quality.learning.outcome_import import Imported, delete_import, list_imports
from quality.records.record import Record
from quality.store.database import MOST_INTEGER
from quality.store.pages import VERIFICATIONS, Page, PageError
from quality.store.queries import reset_labels
from quality.verification.feedback import JUDGE, Feedback, FeedbackTaken, reviewable

ReviewVerdict = Literal["no_worse", "tie", "worse"]
_SCORES: dict[ReviewVerdict, float] = {"no_worse": 1.0, "tie": 0.5, "worse": 0.0}
LOOKED_THROUGH = 50
ReviewedLabel = FromQuery[Literal["worse", "uncertain"]]
"""The labels of answers to review: what a judge said, and where opinions differ."""


class ReviewOrder(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The verdict on the served answer compared with the verifier's."""

    verdict: ReviewVerdict
    comment: Annotated[str, Meta(max_length=8192)] | None = None
    """For people to read."""


class Reviewable(msgspec.Struct, frozen=True):
    """A judged answer with stored texts: the verification's whole row, and its request."""

    row: dict[str, Any]
    record: Record


async def order_review(serving: Serving, actor: str, number: int, order: ReviewOrder) -> FeedbackTaken:
    """Store the verdict. Raises `ApiError` 404, 409 and 503."""
    row = await reached(VERIFICATIONS.one(serving.database, number)) if 1 <= number <= MOST_INTEGER else None
    if row is None:
        raise ApiError(404, f"There is no verification {number}.", param="number", code="verification_not_found")
    asked = await _with_texts(serving, row)
    if asked is None:
        because = "only served answers that have been judged, with stored texts, can be reviewed"
        raise ApiError(409, f"Verification {number}: {because}.", param="number", code="not_reviewable")
    feedback = Feedback(score=_SCORES[order.verdict], comment=order.comment)
    return await reached(serving.feedback.take(asked.record, feedback, reviewer=actor))


async def review_of(serving: Serving, number: int) -> Reviewable | None:
    """Return that verification with its texts, None if they are deleted. Raises `ApiError` 503."""
    row = await reached(VERIFICATIONS.one(serving.database, number))
    return None if row is None else await _with_texts(serving, row)


async def reviews_from(serving: Serving, label: str, cursor: str | None, most: int) -> Page:
    """Return the newest unreviewed answers with this `label`, from `cursor` on; `most` of them, from a limited number
    of rows, without texts. Raises `ApiError` 400 and 503."""
    chosen, bounds = {"status": "done", "label": label}, {"cursor": cursor} if cursor else {}
    try:
        judged = await reached(VERIFICATIONS.page(serving.database, chosen, limit=LOOKED_THROUGH, **bounds))
    except PageError as error:
        raise bad_request(f"{error}.", error.param, "invalid_value") from error
    unseen = [row["verification_id"] for row in judged.rows if row["judge"] != JUDGE]
    with_texts = await reached(reviewable(serving.database, unseen))
    rows = [row for row in judged.rows if row["verification_id"] in with_texts]
    if len(rows) < most or rows[most - 1] is judged.rows[-1]:
        return Page(rows=rows, next=judged.next)
    return Page(rows=rows[:most], next=VERIFICATIONS.cursor_of(rows[most - 1]))


async def _with_texts(serving: Serving, row: dict[str, Any]) -> Reviewable | None:
    """Return None unless it is about the served answer, judged, with both texts: as `reviewable`, but also for a
    request that is recorded and not stored yet."""
    if row["status"] != "done" or row["verifier_answer"] is None:
        return None
    record = await reached(serving.records.find(row["request_id"]))
    if not isinstance(record, Record) or record.tier != row["tier"] or not record.messages or record.answer is None:
        return None
    return Reviewable(row, record)


@get("/reviews", summary="List answers to review")
async def list_reviews(
    admin: Admin, as_csv: AsCsv, label: ReviewedLabel = "worse", cursor: FromQuery[str | None] = None
) -> Response[Page]:
    """Unreviewed verifications that a judge called worse, newest first, without texts. A page may be short, because a
    limited number of rows is searched. Query: `label`, worse or uncertain; `cursor`."""
    asked = await reviews_from(admin.serving, label, cursor, LOOKED_THROUGH)
    return json_or_csv(as_csv, "reviews", asked, VERIFICATIONS.columns, asked.rows)


@post("/verifications/{number:int}/review", opt=OPERATOR, status_code=200, summary="Review a judged answer")
async def review_verification(number: FromPath[int], data: JSONBody[ReviewOrder], admin: Admin) -> FeedbackTaken:
    """The strongest label: it replaces the judge's, and the next training uses it. 409 unless it is about the served
    answer, with stored texts."""
    return await order_review(admin.serving, admin.actor, number, data)


PATH = "/admin/quality/review"


@get("/quality/review")
async def show_review(
    request: HttpRequest, admin: Admin, label: ReviewedLabel = "worse", cursor: FromQuery[str | None] = None
) -> Response[Any]:
    """Show the newest unreviewed answer. Query: `label`, worse or uncertain; `cursor`, to skip those before."""
    asked = await reviews_from(admin.serving, label, cursor, 1)
    answer = await review_of(admin.serving, asked.rows[0]["verification_id"]) if asked.rows else None
    return page(request, "review.html", "Review", answer=answer, next=asked.next, label=label)


@post("/quality/review/{number:int}", opt=OPERATOR, status_code=200)
async def review(
    request: HttpRequest, number: FromPath[int], admin: Admin, label: ReviewedLabel = "worse"
) -> Response[Any]:
    """Record the operator's verdict; the next answer follows. Query: `label`, as above."""
    order = parse_form(given_of(await form_of(request), "verdict", "comment"), ReviewOrder)
    done = await order_review(admin.serving, admin.actor, number, order)
    learned = "the next training learns from it" if done.learned else done.reason
    after = PATH if label == "worse" else f"{PATH}?label={label}"
    return back_to(after, f"Reviewed as {order.verdict.replace('_', ' ')}: {learned}.")


class LabelsShown(msgspec.Struct, frozen=True, kw_only=True):
    """The labels and their use."""

    labels: dict[str, int]
    """By serving version, how many of the catalogue's own labels count in its decisions."""


async def order_reset(operations: Operations, actor: str, reason: str) -> None:
    """Reset the labels until now. Raises `ApiError` 409 and 503."""
    active, now = _active(operations), time.time()
    await reached(reset_labels(operations.serving.database, actor=actor, reason=reason, now=now))
    await reached(active.catch_up(now))


def labels_shown(operations: Operations) -> LabelsShown:
    """Return those that count now. Raises `ApiError` 409 without a classifier."""
    return LabelsShown(labels=_active(operations).counts)


def _active(operations: Operations) -> ActiveLabels:
    active = operations.active_labels
    if active is None:
        raise ApiError(409, "This server has no classifier of its own.", code="classifier_off")
    return active


class ResetOrder(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The reason, recorded with the author."""

    reason: Annotated[str, Meta(min_length=1, max_length=1024)]


@post("/promotions/reset", opt=OPERATOR, status_code=200, summary="Forget the labels that routing follows")
async def reset_own_labels(data: JSONBody[ResetOrder], admin: Admin) -> LabelsShown:
    """Labels until now no longer influence decisions, here at once and on other replicas soon, and train no version
    from now on. 409 without a classifier."""
    await order_reset(admin.operations, admin.actor, data.reason)
    return labels_shown(admin.operations)


class ImportList(msgspec.Struct, frozen=True, kw_only=True):
    """The imports, newest first."""

    rows: list[Imported]


class ImportDeleted(msgspec.Struct, frozen=True, kw_only=True):
    """The result of deleting an import."""

    import_id: str
    labels: int
    """How many labels were deleted."""


@get("/outcomes/imports", summary="List imports of outcomes")
async def show_imports(admin: Admin) -> ImportList:
    """What each import was understood to say of the tiers, and how many of its labels are left."""
    return ImportList(rows=await reached(list_imports(admin.database)))


@delete("/outcomes/imports/{import_id:str}", opt=OPERATOR, status_code=200, summary="Delete an import of outcomes")
async def undo_import(import_id: FromPath[str], admin: Admin) -> ImportDeleted:
    """Its labels move no decision any more, here at once and on other replicas soon, and train no version from now on.
    Labels that it replaced do not come back."""
    now = time.time()
    gone = await reached(delete_import(admin.database, import_id, actor=admin.actor, reason=None, now=now))
    if gone is None:
        raise ApiError(404, f"There is no import {import_id[:64]!r}.", param="import_id", code="import_not_found")
    if admin.operations.active_labels is not None:
        await reached(admin.operations.active_labels.catch_up(now))
    return ImportDeleted(import_id=import_id, labels=gone)


LABEL_ENDPOINTS = (list_reviews, review_verification, reset_own_labels, show_imports, undo_import)
