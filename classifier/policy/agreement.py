"""Should cheap tiers answer at once, and the strongest one only where they differ? Which tiers, and does it pay?

One more action of the objective of every decision (`classifier.policy.utility`): with r the exchange rate, R the
reference price, a the share of agreement, d what an agreed answer loses, p the price of the cheap answers and S that of
the strongest, it is worth 1 - a d - r (p + (1 - a) S) / R, and is taken where no fixed tier is worth as much.
"""

import math
from collections.abc import Callable, Sequence
from typing import Literal

import msgspec

from classifier.decision import HALF_NOVELTY, Holds, Objective, Overrides, PricedAgreement
from classifier.policy.agreement_counts import AgreementCounts, AgreementRates, estimated_rates, prior_rates
from classifier.policy.decide import barred_tiers, held_back
from classifier.policy.utility import enough_of, utility

# P(as good) of two cheap tiers of which nothing was measured, the partner and the one whose answer is sent: about the
# mean of recorded ladders. What a table of the first day says of classes is not what decides whether answers agree.
_USUAL_PARTNER, _USUAL_MIDDLE = 0.75, 0.82


class AgreementSettings(msgspec.Struct, frozen=True, kw_only=True):
    """When cheap tiers are compared."""

    price_share: float = 1.0 / 6.0
    """The most that a tier asked for agreement may cost, as a share of the strongest tier's price."""
    least_verified: float = 20.0
    """Verified comparisons up to which a verification buys more, and without which no second sample is drawn."""
    most_answers: int = 3
    """Most answers of cheap tiers at once."""


class AgreementGroup(msgspec.Struct, frozen=True, kw_only=True):
    """Cheap tiers that answer at once. The last one's answer is sent if another equals it, else `higher` answers."""

    tiers: tuple[int, ...]
    """Ascending. One tier twice stands for two samples of it."""
    higher: int

    @property
    def middle(self) -> int:
        """The tier whose answer is sent."""
        return self.tiers[-1]


class AgreementPlan(msgspec.Struct, frozen=True, kw_only=True):
    """Whether cheap tiers are compared, and which."""

    reason: str
    first: int | None = None
    """The tier that is asked as usual: the chosen one, unless it is too dear."""
    partner: int | None = None
    """The tier asked at once with it; None if tiers are not compared."""
    others: tuple[int, ...] = ()
    """Further tiers asked at once with it."""
    group: AgreementGroup | None = None
    priced: PricedAgreement | None = None
    """What the comparison is worth, or None."""


# The counts of a group for the request's tenant, key, system prompt and kind, each once; the widest level first.
Counted = Callable[[tuple[int, ...]], Sequence[AgreementCounts]]


def group_of(
    costs: Sequence[float], allowed: Sequence[int], answering: int, settings: AgreementSettings
) -> AgreementGroup | None:
    """Return the tiers to compare, out of the `allowed` ones (ascending), or None if there are not two cheap enough.

    The best tier that costs at most `price_share` of the strongest allowed one is the middle. `answering` joins it if
    it is cheap enough, and then the cheapest ones.
    """
    if not allowed:
        return None
    higher = allowed[-1]
    most = settings.price_share * costs[higher - 1] * (1.0 + 1e-9)
    cheap = [k for k in allowed[:-1] if costs[k - 1] <= most]
    if len(cheap) < 2:
        return None
    middle = cheap[-1]
    joined = [middle, *([answering] if answering in cheap and answering != middle else [])]
    joined += [k for k in cheap if k not in joined][: settings.most_answers - len(joined)]
    return AgreementGroup(tiers=tuple(sorted(joined)), higher=higher)


def partner_of(group: AgreementGroup, first: int) -> int:
    """Return the partner of `first`: the best other tier of the group."""
    return max(k for k in group.tiers if k != first)


def agreed_tier(group: AgreementGroup, equal: Callable[[int, int], bool]) -> int | None:
    """Return the tier whose answer is sent, or None if the higher tier is to be asked. `equal`: whether the answers of
    two tiers agree."""
    middle = group.middle
    return middle if any(equal(k, middle) for k in group.tiers[:-1]) else None


def worth_of_agreement(inputs: Objective, group: AgreementGroup, rates: AgreementRates) -> float:
    """Return the utility of asking the group, and the higher tier where its answers differ. Of two samples of one tier
    the first is paid whatever is done."""
    cheap = sum(inputs.costs[k - 1] for k in dict.fromkeys(group.tiers))
    usd = cheap + (1.0 - rates.agreed) * inputs.costs[group.higher - 1]
    return utility(1.0 - rates.agreed * rates.lost, usd, inputs.reference, inputs.exchange)


def plan_agreement(
    inputs: Overrides, answering: int, kind: str, counted: Counted, settings: AgreementSettings, asked: bool
) -> AgreementPlan:
    """Plan agreement for a request whose tier by `decide` is `answering` and whose answer is of `kind`. `asked`: the
    key or the request wants it, so that it need not be certain that such answers agree as they do on most ladders."""
    if why := _fixed_by(inputs):
        return AgreementPlan(reason=why)
    allowed = _allowed(inputs)
    group = group_of(inputs.costs, allowed, answering, settings)
    if group is None:
        return AgreementPlan(reason=f"fewer than two tiers cost at most {settings.price_share:.0%} of the strongest")
    most = sum(inputs.costs[k - 1] for k in (*group.tiers, group.higher))
    if inputs.max_cost_usd is not None and most > inputs.max_cost_usd:
        why = f"all answers would cost ${most:.6f}, which is above the maximum ${inputs.max_cost_usd:.6f}"
        return AgreementPlan(reason=why)
    rates = _estimated(inputs, group, kind, counted(group.tiers), "hoped" if asked else "certain")
    priced = _priced(inputs, group, kind, allowed, rates, asked=asked)
    if not priced.taken:
        why = f"tier {priced.alone} alone has a utility of {priced.alone_worth:.3f}, agreement {priced.worth:.3f}"
        return AgreementPlan(reason=why, priced=priced)
    first = answering if answering in group.tiers else group.tiers[0]
    partner = partner_of(group, first)
    others = tuple(k for k in group.tiers if k not in (first, partner))
    return AgreementPlan(reason=str(priced), first=first, partner=partner, others=others, group=group, priced=priced)


def group_to_verify(
    inputs: Overrides, answering: int, settings: AgreementSettings, *, is_judged: bool
) -> AgreementGroup | None:
    """Return the tiers whose answers the verification of a request may compare; None where it compares none.

    Without a partner they are two samples of the `answering` tier, if its answers are judged by their own evidence
    (`is_judged`), which a second sample adds to.
    """
    if _fixed_by(inputs):
        return None
    group = group_of(inputs.costs, _allowed(inputs), answering, settings)
    return second_sample_group(inputs, answering) if group is None and is_judged else group


def lacks_counts(
    inputs: Objective, group: AgreementGroup, kind: str, counted: Counted, settings: AgreementSettings
) -> bool:
    """Return whether too few verified comparisons of the group are known to decide, and the group might still be worth
    more than the strongest tier alone."""
    levels = counted(group.tiers)
    if sum(level.verified for level in levels) >= settings.least_verified:
        return False
    rates = _estimated(inputs, group, kind, levels, "hoped")
    return _priced(inputs, group, kind, [group.higher], rates, asked=True).taken


def second_sample_group(inputs: Holds, answering: int) -> AgreementGroup | None:
    """Return two samples of the tier `answering`, with the next tier above; None where no tier above may answer."""
    above = [k for k in _allowed(inputs) if k > answering]
    return AgreementGroup(tiers=(answering, answering), higher=above[0]) if above else None


def second_sample_pays(
    inputs: Objective, answering: int, kind: str, counted: Counted, settings: AgreementSettings
) -> bool:
    """Return whether verified counts show that a second sample of the tier `answering` is worth its price, for an
    answer that the next tier would replace otherwise."""
    group = second_sample_group(inputs, answering)
    if group is None:
        return False
    levels = counted(group.tiers)
    if sum(level.verified for level in levels) < settings.least_verified:
        return False
    rates = _estimated(inputs, group, kind, levels, "certain")
    return _priced(inputs, group, kind, [group.higher], rates, asked=False).taken


def _allowed(inputs: Holds) -> list[int]:
    """Return the tiers that may answer, ascending."""
    barred = barred_tiers(inputs)
    allowed = [k for k in range(1, len(inputs.costs) + 1) if k not in barred]
    held = held_back(inputs, allowed) if allowed else {}
    return [k for k in allowed if k not in held]


def _estimated(
    inputs: Objective,
    group: AgreementGroup,
    kind: str,
    levels: Sequence[AgreementCounts],
    view: Literal["certain", "hoped"],
) -> AgreementRates:
    """Return the rates by the prior and `levels`. The prior's part is one deviation of ladders better than their mean
    where agreement is `hoped` for, and one worse where it must be `certain` to pay."""
    label_counts = [*inputs.prediction.labels, *[0.0] * len(inputs.costs)]
    measured = inputs.prediction.kind == "measured"

    def p_ok(tier: int, usual: float) -> float:
        share = 1.0 if measured else label_counts[tier - 1] / (label_counts[tier - 1] + HALF_NOVELTY)
        return share * inputs.prediction.p_ok[tier - 1] + (1.0 - share) * usual

    # A second sample of a tier is mostly as good wherever the first one is.
    others = [k for k in group.tiers if k != group.middle]
    partner = max((p_ok(k, _USUAL_PARTNER) for k in others), default=1.0)
    edge = 1.0 if view == "hoped" else -1.0
    return estimated_rates(levels, prior_rates(kind, partner, p_ok(group.middle, _USUAL_MIDDLE), edge))


def _fixed_by(inputs: Overrides) -> str:
    """Return why one tier alone may answer, if so."""
    if inputs.pinned_tier is not None:
        return f"the request is pinned to tier {inputs.pinned_tier}"
    if inputs.rules is not None and inputs.rules.tier is not None:
        return f"a rule sends the request to tier {inputs.rules.tier}"
    if inputs.arm_tier is not None:
        return f"the experiment sends the request to tier {inputs.arm_tier}"
    if inputs.observe_tier is not None:
        return f"in observe mode tier {inputs.observe_tier} answers"
    return ""


def _priced(
    inputs: Objective,
    group: AgreementGroup,
    kind: str,
    allowed: Sequence[int],
    rates: AgreementRates,
    *,
    asked: bool,
) -> PricedAgreement:
    """Return what agreement and the best of single tiers are worth. Where it is `asked` for, a cheaper tier counts only
    by measured outcomes: a table of the first day does not know which answers are wrong."""
    prediction, enough = inputs.prediction, enough_of(inputs.prediction)
    is_known = not asked or prediction.kind == "measured" or any(prediction.labels)
    alone, most = group.higher, -math.inf
    for k in allowed if is_known else [group.higher]:
        p = prediction.p_ok[k - 1]
        p_ok = 1.0 if k == group.higher or (p >= enough and not asked) else p
        fixed = utility(p_ok, inputs.costs[k - 1], inputs.reference, inputs.exchange)
        if fixed > most:
            alone, most = k, fixed
    worth = worth_of_agreement(inputs, group, rates)
    return PricedAgreement(
        tiers=group.tiers,
        higher=group.higher,
        kind=kind,
        agreed=rates.agreed,
        lost=rates.lost,
        worth=worth,
        alone=alone,
        alone_worth=most,
        taken=worth > most,
    )
