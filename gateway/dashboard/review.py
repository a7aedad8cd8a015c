"""The review queue: answers that a judge called worse, one at a time beside the verifier's, for operators to judge."""

from typing import Any

from litestar import get, post
from litestar.params import FromPath
from litestar.response import Response

from gateway.api.guard import OPERATOR
from gateway.api.reviews import ReviewOrder, next_review, order_review
from gateway.dashboard.forms import fields_of, taken
from gateway.dashboard.rendering import back_to, page
from gateway.errors import bad_request
from gateway.parts import HttpRequest, parts_of
from quality.pages import PageError

PATH = "/admin/quality/review"


@get("/quality/review")
async def show_review(request: HttpRequest) -> Response[Any]:
    """The newest that nobody reviewed. Query: `cursor`, to pass over those before."""
    try:
        asked = await next_review(parts_of(request), request.query_params.get("cursor") or None)
    except PageError as error:
        raise bad_request(f"{error}.", error.param, "invalid_value") from error
    return page(request, "review.html", "Review", found=asked.found, next=asked.next)


@post("/quality/review/{number:int}", opt=OPERATOR, status_code=200)
async def review(request: HttpRequest, number: FromPath[int]) -> Response[Any]:
    """Take what the operator says; the next one is shown."""
    fields = await fields_of(request)
    said: dict[str, str] = {name: fields[name] for name in ("verdict", "comment") if name in fields}
    done = await order_review(request, number, taken(said, ReviewOrder))
    learned = "the next training learns from it" if done.learned else done.reason
    return back_to(PATH, f"Reviewed as {fields['verdict'].replace('_', ' ')}: {learned}.")
