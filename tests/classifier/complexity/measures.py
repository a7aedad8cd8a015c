"""What is measured on each held-out set: accepted tiers, and tiers that stay the same where the task stays the same."""

from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np

from tests.classifier.complexity.decided_tiers import (
    Figure,
    Hits,
    Tiers,
    best_constant,
    by_length,
    gateway_tiers_of,
    tiers_of,
    within,
)
from tests.classifier.complexity.held_out import Row, misspelt, rated, user

SLIPS = (0.1, 0.3)


def every_figure() -> list[Figure]:
    """Measure every set."""
    return [
        *conversations(),
        *housekeeping(),
        *pasted(),
        *translations(),
        *noise(),
        *single("short_hard", "short hard requests, not English: within the range"),
        *single("languages", "prompts in 15 languages: within the range"),
    ]


def conversations() -> list[Figure]:
    """The last turn in context, against the same turn alone and against its range. Controls: the turn alone, and all
    turns of the user joined."""
    rows = rated("conversations")
    last = [row.turns[-1][1] for row in rows]
    joined = ["\n".join(text for role, text in row.turns if role == "user") for row in rows]
    context, alone, together = tiers_of(row.messages for row in rows), _of_texts(last), _of_texts(joined)
    kind = np.array([row.kind for row in rows])
    found = []
    for named, of_kind, keeps in (
        ("short hard request after an easy turn: no lower than alone", "hard_after_easy", np.greater_equal),
        ("short easy request after a hard turn: the same as alone", "easy_after_hard", np.equal),
    ):
        at = kind == of_kind
        others = {"joined": float(keeps(together[at], alone[at]).mean())}
        found.append(_kept("conversations", named, keeps(context[at], alone[at]), None, others))
    for named, at in (
        ("short hard request after an easy turn", kind == "hard_after_easy"),
        ("short easy request after a hard turn", kind == "easy_after_hard"),
        ("follow-up", kind == "follow_up"),
        ("all conversations", kind != ""),
    ):
        own = [rows[n] for n in np.flatnonzero(at)]
        controls = {"joined": together[at], "alone": alone[at]}
        found.append(_accepted("conversations", f"{named}: within the range", own, context[at], controls))
    return found


def housekeeping() -> list[Figure]:
    """Prompts of front ends at the cheapest tier, and hard requests that look like them."""
    rows, found = rated("housekeeping"), []
    for kind, named in (("housekeeping", "front ends' own prompts"), ("unnamed", "such prompts in other words")):
        own = [row for row in rows if row.kind == kind]
        cheapest = gateway_tiers_of([row.messages for row in own]) == 1
        length = by_length("housekeeping", own, [row.messages[-1]["content"] for row in own]) == 1
        found.append(_kept("housekeeping", f"{named}: tier 1", cheapest, float(length.mean()), {}))
    near = [row for row in rows if row.kind == "near_miss"]
    tiers = gateway_tiers_of([row.messages for row in near])
    return [*found, _accepted("housekeeping", "hard requests in their form: within the range", near, tiers, {})]


def pasted() -> list[Figure]:
    """Questions about pasted data. The control is the question without the data."""
    rows = rated("pasted")
    tiers, alone, found = tiers_of(row.messages for row in rows), _of_texts([row.ask for row in rows]), []
    for named, classes in (("easy and medium question", (1, 2)), ("hard question", (3, 4)), ("all", (1, 2, 3, 4))):
        at = np.array([row.class_ in classes for row in rows])
        own, measure = [rows[n] for n in np.flatnonzero(at)], f"{named}, data pasted: within the range"
        found.append(_accepted("pasted", measure, own, tiers[at], {"question alone": alone[at]}))
    return found


def translations() -> list[Figure]:
    """One request in many languages: in how many does it get its commonest tier?"""
    rows = rated("translations")
    texts = [text for row in rows for text in row.texts.values()]
    repeated = [row for row in rows for _ in row.texts]
    tiers, lengths = _of_texts(texts), by_length("translations", repeated, texts)
    shape, found = (len(rows), len(rows[0].texts)), []
    for named, distance in (("tier of most languages", 0), ("that tier or a neighbour", 1)):
        near = near_mode(tiers.reshape(shape), distance)
        control = float(near_mode(lengths.reshape(shape), distance).mean())
        found.append(_kept("translations", f"30 requests, 14 languages: {named}", near, control, {}))
    measure = "30 requests, 14 languages: within the range"
    return [*found, _accepted("translations", measure, repeated, tiers, {}, texts)]


def noise() -> list[Figure]:
    """The same request in another form: does it keep its tier?"""
    rows = rated("noise")
    plain = [row.prompt for row in rows]
    tiers, lengths = _of_texts(plain), by_length("noise", rows, plain)
    changed = {
        f"misspelt, {share:.0%} of the words": [misspelt(text, share, seed) for seed, text in enumerate(plain)]
        for share in SLIPS
    }
    changed |= {"ornate words": [row.ornate for row in rows], "instructions on form": [row.wrapped for row in rows]}
    found = [_accepted("noise", "80 plain prompts: within the range", rows, tiers, {})]
    for named, texts in changed.items():
        now, control = _of_texts(texts), float((by_length("noise", rows, texts) == lengths).mean())
        found.append(_kept("noise", f"{named}: tier kept", now == tiers, control, {}))
        found.append(_accepted("noise", f"{named}: within the range", rows, now, {}, texts))
    return found


def single(name: str, measure: str) -> list[Figure]:
    """Prompts with nothing around them."""
    rows = rated(name)
    return [_accepted(name, measure, rows, tiers_of(row.messages for row in rows), {})]


def _of_texts(texts: Sequence[str]) -> Tiers:
    return tiers_of(map(user, texts))


def _kept(name: str, measure: str, hits: Hits, length: float | None, others: dict[str, float]) -> Figure:
    return Figure(set=name, measure=measure, hits=int(hits.sum()), n=hits.size, length=length, others=others)


def _accepted(
    name: str,
    measure: str,
    rows: Sequence[Row],
    tiers: Tiers,
    others: Mapping[str, Tiers],
    texts: Sequence[str] | None = None,
) -> Figure:
    """The share of `rows` whose tier is accepted. `texts`: what lengths are of, by default the newest turns."""
    texts = [row.messages[-1]["content"] for row in rows] if texts is None else texts
    return Figure(
        set=name,
        measure=measure,
        hits=int(within(rows, tiers).sum()),
        n=len(rows),
        length=float(within(rows, by_length(name, rows, texts)).mean()),
        one_tier=best_constant(rows),
        others={named: float(within(rows, one).mean()) for named, one in others.items()},
    )


def near_mode(tiers: Tiers, distance: int) -> Hits:
    """Return where a tier [request, language] is at most `distance` from the commonest of its request; of several such
    tiers, from the one that most are near to."""
    found = []
    for own in tiers:
        counts = Counter(own.tolist())
        modes = [tier for tier, count in counts.items() if count == max(counts.values())]
        found.append(max((np.abs(own - mode) <= distance for mode in modes), key=lambda near: int(near.sum())))
    return np.array(found)
