"""Which pair of tiers serves the sessions of a client: the decision of `session_pairs`, by work that tiers finished.

Each piece of work ran on the tier that routing chose, so tiers are compared on different work; what a session's own bad
end moved up was done again, and says what the second tier makes of the first one's failures. A bad end is the check.
"""

from collections.abc import Sequence

import msgspec
import numpy as np

from quality.comparison.session_pairs import LEAST_TASKS, PairDecision, Ways, decide_between
from quality.estimates.session_work import Work

LEAST_AGAIN = 10
"""Pieces of work that a second tier did again, for a pair to be judged."""


class SessionVerdict(msgspec.Struct, frozen=True, kw_only=True):
    """Of one client's sessions: `work` with a known end, the verdict in a `sentence`, and the `decision`; None where
    too little is known for one."""

    client: str
    work: int
    sentence: str
    decision: PairDecision | None = None


def session_verdicts(work: Sequence[Work]) -> list[SessionVerdict]:
    """Return the verdict on each client of `work`, those with most of it first."""
    by_client: dict[str, list[Work]] = {}
    for piece in work:
        by_client.setdefault(piece.client, []).append(piece)
    return [_verdict(client, by_client[client]) for client in sorted(by_client, key=lambda name: -len(by_client[name]))]


def _verdict(client: str, work: Sequence[Work]) -> SessionVerdict:
    found = session_ways(work)
    decision = None if found is None else decide_between(*found)
    pieces = f"{len(work)} pieces of work with a known end"
    if decision is None:
        said = (
            f"not known yet which tiers serve these sessions: {pieces}; a verdict needs {LEAST_TASKS} on each of two "
            f"tiers, and {LEAST_AGAIN} done again after a bad end"
        )
    elif decision.verdict == "pays":
        said = (
            f"{decision.first}, and {decision.second} after a bad end, ends well {100 * decision.gain:.1f} times "
            f"in 100 more than the best mix of single tiers at the same dollars "
            f"(at least {100 * decision.low:.1f}; {pieces})"
        )
    else:
        said = (
            "no pair of tiers is shown to beat the best mix of single tiers at the same dollars "
            f"({pieces}); of single tiers {decision.alone} is worth most"
        )
    sentence = f"{client or 'Other tools'}: {said}."
    return SessionVerdict(client=client, work=len(work), sentence=sentence, decision=decision)


def session_ways(work: Sequence[Work]) -> tuple[list[str], Ways, Ways, list[tuple[int, int]]] | None:
    """Return the tiers' names, the ways of single tiers and of pairs, and which two each pair has; None where fewer
    than two tiers or no pair have enough work.

    A value is an estimate and what its piece of work moves it by (an influence function), so that values of different
    work have their mean and its variance in one table.
    """
    tiers = np.array([piece.tier for piece in work])
    made = np.array([[piece.good, piece.usd] for piece in work], np.float64)
    known = [tier for tier in sorted(set(tiers.tolist())) if (tiers == tier).sum() >= LEAST_TASKS]
    again = np.array([piece.again.tier if piece.again is not None else 0 for piece in work])
    second = np.array([[p.again.good, p.again.usd] if p.again is not None else [0.0, 0.0] for p in work], np.float64)
    order = [
        (i, j)
        for i, one in enumerate(known)
        for j, other in enumerate(known)
        if ((tiers == one) & (again == other)).sum() >= LEAST_AGAIN
    ]
    if len(known) < 2 or not order:
        return None
    single = [_influenced(made, tiers == tier, len(work)) for tier in known]
    pairs = []
    for i, j in order:
        on_first, moved = tiers == known[i], (tiers == known[i]) & (again == known[j])
        # One success and one failure more: follow-ups that all ended alike have no variance by chance.
        after = second[moved].sum(axis=0) + np.array([1.0, 2 * second[moved][:, 1].mean()])
        after /= moved.sum() + 2
        bad = 1.0 - made[:, :1]
        values = _influenced(made + bad * after, on_first, len(work))
        share = float(bad[on_first].mean()) * len(work) / moved.sum()
        values[moved] += share * (second[moved] - after)
        pairs.append(values)
    names = [f"tier {tier}" for tier in known]
    return names, _ways(single), _ways(pairs), order


def _influenced(values: np.ndarray, of: np.ndarray, pieces: int) -> np.ndarray:
    """The mean of `values` [n, 2] over the pieces `of` them, as values [n, 2] of all `pieces` with its variance."""
    mean = values[of].mean(axis=0)
    influenced = np.tile(mean, (pieces, 1))
    influenced[of] += pieces / of.sum() * (values[of] - mean)
    return influenced


def _ways(values: Sequence[np.ndarray]) -> Ways:
    stacked = np.stack(values, axis=1)
    return Ways(stacked[:, :, 0], stacked[:, :, 1])
