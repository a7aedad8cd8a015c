"""The worth of routing in one sentence for people, the same on the dashboard, the command line and in the log."""

from quality.comparison.routing_worth import Bounded, RoutingWorth


def in_words(found: RoutingWorth | None, constant: str = "propose") -> str:
    """Return the verdict in a sentence or two; `constant`: the routing knob, off, propose or act."""
    if found is None:
        return (
            "Whether routing pays here is not known yet: no request has been answered by all tiers, which the budget "
            "of verification pays for."
        )
    measured = (
        f"its utility is {_points(found.over_fixed)} above that of tier {found.best_tier} alone, the best fixed tier, "
        f"and {_points(found.over_mix)} above the best mix of fixed tiers at the same cost, by {found.probes:,} probes"
    )
    if found.verdict == "pays":
        return f"Routing pays here: {measured}."
    if found.verdict == "not_known_yet":
        return (
            f"Whether routing pays here is not known yet: {measured}; about {found.missing:,} more probes like these "
            "decide it."
        )
    said = f"Routing does not pay here, which takes {100 * found.worth:g} points: {measured}."
    return said if constant == "off" else f"{said} {_proposed(found, constant)}"


def _proposed(found: RoutingWorth, constant: str) -> str:
    one = found.constant
    if one is None:
        return (
            f"No fixed tier that is as good costs at most ${found.usd:.6f} a request, as routing does, and is shown to "
            f"meet the quality target {found.target:.2f}, so none is proposed."
        )
    what = (
        f"Tier {one.tier} alone costs ${one.usd:.6f} a request instead of ${found.usd:.6f}, and "
        f"{one.no_worse.value:.0%} of its answers are no worse than the strongest tier's "
        f"(at least {one.no_worse.low:.0%}; routing: {found.no_worse:.0%})"
    )
    if constant == "act":
        return f"{what}: it answers."
    return f"{what}: the routing knob constant=act lets it answer."


def _points(one: Bounded) -> str:
    return f"{100 * one.value:+.1f} points [{100 * one.low:+.1f}, {100 * one.high:+.1f}]"
