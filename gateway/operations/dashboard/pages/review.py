"""The review queue: answers judged worse or left uncertain, one at a time next to the verifier's, for operators."""

from typing import Any

from litestar import get, post
from litestar.params import FromPath
from litestar.response import Response

from gateway.edge.asgi import HttpRequest
from gateway.inference.service import serving_of
from gateway.operations.dashboard.html.forms import form_of, given_of, taken
from gateway.operations.dashboard.html.rendering import back_to, page
from gateway.operations.usecases.reviews import ReviewOrder, label_asked_for, order_review, review_of, reviews_from
from gateway.tenancy.access.admin_guard import OPERATOR, actor_of

PATH = "/admin/quality/review"


@get("/quality/review")
async def show_review(request: HttpRequest) -> Response[Any]:
    """Show the newest unreviewed answer. Query: `label`, worse or uncertain; `cursor`, to skip those before."""
    serving, label = serving_of(request), label_asked_for(request)
    asked = await reviews_from(serving, label, request.query_params.get("cursor"), 1)
    found = await review_of(serving, asked.rows[0]["verification_id"]) if asked.rows else None
    return page(request, "review.html", "Review", found=found, next=asked.next, label=label)


@post("/quality/review/{number:int}", opt=OPERATOR, status_code=200)
async def review(request: HttpRequest, number: FromPath[int]) -> Response[Any]:
    """Record the operator's verdict; the next answer follows. Query: `label`, as above."""
    label = label_asked_for(request)
    order = taken(given_of(await form_of(request), "verdict", "comment"), ReviewOrder)
    done = await order_review(serving_of(request), actor_of(request), number, order)
    learned = "the next training learns from it" if done.learned else done.reason
    after = PATH if label == "worse" else f"{PATH}?label={label}"
    return back_to(after, f"Reviewed as {order.verdict.replace('_', ' ')}: {learned}.")
