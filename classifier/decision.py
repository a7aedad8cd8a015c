"""What a routing decision is: the inputs it was made from and the choice, as plain replayable data."""

from typing import Literal

import msgspec


class Exclusion(msgspec.Struct, frozen=True):
    """A tier that was not allowed for this request, and why (an operator reads this at 3 a.m.)."""

    tier: int
    reason: str


# Predictions of a version of the classifier; the others say nothing of how good it is.
LEARNED_KINDS = ("measured", "prior")


class Prediction(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome model's word on one prompt.

    `p_ok[k-1]` = P(tier k's answer is no worse than the strongest tier's); the last is 1 (DESIGN §4).
    `kind`: "prior" while this catalogue's models have no measured outcomes, "heuristic" when the classifier failed,
    "edge" when the fast path did without it.
    `novelty` in [0, 1]: how little is known of such prompts for the key, 1 without any label of them.
    `contributions`: the features that moved the decision most, as (name, signed effect on the logit of p_ok of tier 1).
    `p_correct[k-1]` = P(tier k's answer is correct); empty where the artefact has no such heads.
    `predicted_tokens[k-1]`: how many tokens tier k is expected to bill for its answer, None where that is not known;
    empty if for none.
    `classes`: P(SIMPLE, MEDIUM, COMPLEX, EXPERT), where `p_ok` follows from them: it is then P(the answer is good
    enough); else empty. `labels[k-1]`: how many answers of tier k to such prompts were labelled, for this key or, where
    it has no labels, for all; `good_labels[k-1]` of them were as good as the strongest tier's. Empty without labels.
    """

    p_ok: list[float]
    kind: Literal["measured", "prior", "heuristic", "edge"]
    novelty: float
    classifier_version: str
    contributions: list[tuple[str, float]] = []
    p_correct: list[float] = []
    predicted_tokens: list[float | None] = []
    classes: list[float] = []
    labels: list[float] = []
    good_labels: list[float] = []


class EdgePath(msgspec.Struct, frozen=True, kw_only=True):
    """The fast path for short prompts: `tier` goes first. `prompt_tokens` and `new_tokens`: the request's, and the most
    that the operator allows there."""

    tier: int
    prompt_tokens: int
    max_prompt_tokens: int
    new_tokens: int
    max_new_tokens: int


class PolicyInputs(msgspec.Struct, frozen=True, kw_only=True):
    """Everything `decide` looks at; recorded with the request, so that a decision can be replayed.

    `costs[k-1]`: predicted US dollars of answering with tier k, never falling in k.
    `predicted_waits[k-1]`: seconds that tier k's queue was predicted to take; too long a wait is an exclusion.
    `tau`: the least `p_ok` of the tier that answers. `quality_target` is what the caller asked for, for the record.
    `min_tier`: the least tier that the request asks for; `key_min_tier`: the least that its key does.

    `previous_tier` gave the conversation's last answer; `reuse_usd[k-1]` is what tier k saves of its cost by
    having read the conversation's beginning already; `in_tool_loop`: the turn brings results of calls that the
    previous tier made. `canary`: the prediction is that of a version on trial.

    `experiment_id` and `arm`: the experiment that the request is part of; `arm_tier` is the tier that its arm is given
    to, where arms are tiers. `observe_tier`: routing is only watched; this tier answers whatever would be chosen.
    `edge`: the fast path that the request may take, which comes before the rule.
    """

    prediction: Prediction
    costs: list[float]
    quality_target: float
    tau: float
    pinned_tier: int | None = None
    min_tier: int | None = None
    key_min_tier: int | None = None
    max_cost_usd: float | None = None
    exclusions: list[Exclusion] = []
    predicted_waits: list[float] = []
    previous_tier: int | None = None
    reuse_usd: list[float] = []
    in_tool_loop: bool = False
    canary: bool = False
    experiment_id: str | None = None
    arm: str | None = None
    arm_tier: int | None = None
    observe_tier: int | None = None
    edge: EdgePath | None = None


class Decision(msgspec.Struct, frozen=True, kw_only=True):
    """The choice and its reason. `scores[k-1]`: tier k's share of the strongest one's cost if it is good enough, else 2
    minus that, so that the tier with the least score answers; None where excluded.

    `would_be`: the tier that routing would have taken, where it is only watched and `tier` answers instead; else None.
    """

    tier: int
    reason: str
    scores: list[float | None]
    inputs: PolicyInputs
    would_be: int | None = None

    @property
    def by_edge(self) -> bool:
        """Whether the fast path chose the tier that answers."""
        edge = self.inputs.edge
        return edge is not None and self.would_be is None and self.tier == edge.tier
