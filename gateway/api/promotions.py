"""`/admin/api/promotions`: where recent verified outcomes promote prompts, what that costs, and how to end it."""

import time
from typing import Annotated, Any

import msgspec
from litestar import get, post
from litestar.response import Response
from msgspec import Meta

from gateway.api.csv_export import as_asked
from gateway.api.generating import read_body
from gateway.api.guard import OPERATOR, actor_of
from gateway.api.operations import describe
from gateway.errors import ApiError
from gateway.parts import HttpRequest, parts_of
from gateway.routing.recent_in_force import RecentInForce
from gateway.stores.database_reach import reached
from quality.recent_experience import reset_promotions


class PromotionShown(msgspec.Struct, frozen=True, kw_only=True):
    """A neighbourhood of prompts where P(no worse) of `tier` is multiplied by `factor`.

    Of `answers` (by nearness) `worse` were worse than the strongest tier's, where `version` predicts `expected`.
    `evidence`: an e-value. `cluster`: the kind of prompts that it belongs to. Times in epoch seconds.
    """

    version: str
    tier: int
    cluster: int
    answers: float
    worse: float
    expected: float
    evidence: float
    factor: float
    oldest: float
    newest: float
    expires: float


class PromotionsShown(msgspec.Struct, frozen=True, kw_only=True):
    """`outcomes`: by version, how many recent ones are remembered. `on` is the knob `auto_promotion`; `suspended`: what
    promotions added to this process's serving cost of the last day, `extra_usd` of `serving_usd`, has reached
    `cost_share`."""

    on: bool
    suspended: bool
    cost_share: float
    serving_usd: float
    extra_usd: float
    outcomes: dict[str, int]
    promotions: list[PromotionShown]


class ResetOrder(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Why; written down with who."""

    reason: Annotated[str, Meta(min_length=1, max_length=1024)]


_order = msgspec.json.Decoder(ResetOrder)


@get("/promotions", operation_class=describe(None, PromotionsShown), summary="List promotions in force")
async def list_promotions(request: HttpRequest) -> Response[Any]:
    """Those of this process, which follows the database; the strongest evidence first. 409 without a classifier.
    Query: `format`, json or csv."""
    shown = promotions_shown(request)
    return as_asked(request, "promotions", shown, PromotionShown.__struct_fields__, shown.promotions)


@post(
    "/promotions/reset",
    opt=OPERATOR,
    status_code=200,
    operation_class=describe(ResetOrder, PromotionsShown),
    summary="End all promotions",
)
async def end_promotions(request: HttpRequest) -> Response[Any]:
    """Outcomes up to now promote nothing any more, here at once and on other replicas soon; they still train."""
    await order_reset(request, (await read_body(request, _order)).reason)
    return Response(promotions_shown(request), media_type="application/json")


async def order_reset(request: HttpRequest, reason: str) -> None:
    """End all promotions. Raises `ApiError` 409 and 503."""
    in_force = _in_force(request)
    database, actor, now = parts_of(request).database, actor_of(request), time.time()
    await reached(reset_promotions(database, actor=actor, reason=reason, now=now))
    await reached(in_force.catch_up(now))


def promotions_shown(request: HttpRequest) -> PromotionsShown:
    """Those in force. Raises `ApiError` 409 without a classifier."""
    in_force = _in_force(request)
    routing = parts_of(request).routing
    knobs, account = routing.knobs.in_force, routing.promotions
    return PromotionsShown(
        on=knobs.auto_promotion,
        suspended=not account.admits(knobs.promotion_cost_share, time.monotonic()),
        cost_share=knobs.promotion_cost_share,
        serving_usd=account.serving_usd,
        extra_usd=account.extra_usd,
        outcomes=in_force.outcomes,
        promotions=[
            PromotionShown(
                version=version.version,
                tier=one.tier,
                cluster=int(version.model.clusters.nearest(one.embedding[None])[0]),
                answers=one.answers,
                worse=one.worse,
                expected=one.expected,
                evidence=one.evidence,
                factor=one.factor,
                oldest=one.oldest,
                newest=one.newest,
                expires=one.expires,
            )
            for version, one in in_force.neighbourhoods()
        ],
    )


def _in_force(request: HttpRequest) -> RecentInForce:
    in_force = parts_of(request).recent
    if in_force is None:
        raise ApiError(409, "This server has no classifier of its own to repair.", code="classifier_off")
    return in_force
