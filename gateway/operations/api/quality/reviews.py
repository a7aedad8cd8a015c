"""`/admin/api/reviews`: judged answers for operators to read, and operators' verdicts on them."""

from typing import Any

from litestar import get, post
from litestar.params import FromPath
from litestar.response import Response

from gateway.edge.asgi import HttpRequest
from gateway.edge.openapi import describe
from gateway.inference.api.reading.parsing import read_body
from gateway.inference.service import serving_of
from gateway.operations.csv_export import as_asked
from gateway.operations.usecases.reviews import LOOKED_THROUGH, ReviewOrder, label_asked_for, order_review, reviews_from
from gateway.tenancy.access.admin_guard import OPERATOR, actor_of
from quality.store.pages import VERIFICATIONS, Page
from quality.verification.feedback import FeedbackTaken


@get("/reviews", operation_class=describe(None, Page), summary="List answers to review")
async def list_reviews(request: HttpRequest) -> Response[Any]:
    """Unreviewed verifications that a judge called worse, newest first, without texts. A page may be short, because a
    limited number of rows is searched. Query: `label`, worse or uncertain; `cursor`; `format`, json or csv."""
    label, cursor = label_asked_for(request), request.query_params.get("cursor")
    asked = await reviews_from(serving_of(request), label, cursor, LOOKED_THROUGH)
    return as_asked(request, "reviews", asked, VERIFICATIONS.columns, asked.rows)


@post(
    "/verifications/{number:int}/review",
    opt=OPERATOR,
    status_code=200,
    operation_class=describe(ReviewOrder, FeedbackTaken),
    summary="Review a judged answer",
)
async def review_verification(request: HttpRequest, number: FromPath[int]) -> Response[Any]:
    """The strongest label: it replaces the judge's, and the next training uses it. 409 unless it is about the served
    answer, with stored texts."""
    order = await read_body(request, ReviewOrder)
    taken = await order_review(serving_of(request), actor_of(request), number, order)
    return Response(taken, media_type="application/json")
