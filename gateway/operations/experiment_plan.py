"""The plan of an experiment. Guardrails that the operator does not state leave room for what is to be expected."""

from collections.abc import Mapping
from typing import Any

import msgspec

from gateway.base.settings import Settings
from gateway.inference.class_prior import tier_prior
from gateway.inference.routing_knobs import objective_of
from quality.rollout.experiments import Plan
from quality.rollout.guardrails import MEASURES, Guardrails, Measure
from tiers.catalog.catalog import Catalog
from tiers.catalog.tier_spec import TierSpec

# Arm b may come to so many times what is expected of it.
ROOM = 2.0
# A request whose cost the tiers' prices are compared by.
_PROMPT_TOKENS = 1000


def plan_experiment(
    settings: Settings, catalog: Catalog, margins: Mapping[Measure, float | None], **stated: Any
) -> Plan:
    """Return the plan with what an operator `stated`: the arms, their share, and when it ends; `margins` as in
    `with_guardrails`. Raises `ValueError`."""
    prior, serving = tier_prior(catalog, settings.data_path), objective_of(settings, catalog)
    return with_guardrails(Plan(tiers=len(catalog.tiers), prior=prior, serving=serving, **stated), catalog, margins)


def with_guardrails(plan: Plan, catalog: Catalog, stated: Mapping[Measure, float | None]) -> Plan:
    """Return `plan` with the margins in `stated`, where None is no guardrail, and usual ones for other measures.

    Arm b may usually come to twice arm a's cost and times. Where both arms are tiers and the catalogue says that b's is
    dearer or slower, that is expected: b may come to twice what then follows from the tiers' prices and expected
    answers, time objectives, and mean latencies. A dearer tier is so watched for more than its price. Raises
    `ValueError` for a negative or infinite margin.
    """
    usual = _usual(plan, catalog)
    margins = {measure: stated[measure] if measure in stated else usual[measure] for measure in MEASURES}
    return msgspec.structs.replace(plan, guardrails=Guardrails(**margins))


def _usual(plan: Plan, catalog: Catalog) -> dict[Measure, float | None]:
    if plan.a.tier is None or plan.b.tier is None:
        return dict.fromkeys(MEASURES, ROOM - 1)
    a, b = (_expected(catalog.tier(tier)) for tier in (plan.a.tier, plan.b.tier))
    return {measure: _margin(a[measure], b[measure]) for measure in MEASURES}


def _margin(a: float, b: float) -> float | None:
    if not a:
        # What costs nothing has no multiples: only a tier that is free as well is no dearer.
        return None if b else ROOM - 1
    return round(ROOM * max(1.0, b / a) - 1, 2)


def _expected(tier: TierSpec) -> dict[Measure, float]:
    price = tier.price
    cost = price.input_usd_per_million * _PROMPT_TOKENS + price.output_usd_per_million * tier.expected_answer_tokens
    return {"cost": cost, "ttft": tier.objective.ttft_ms, "e2e": tier.mean_latency_ms}
