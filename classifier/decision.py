"""The data of a routing decision: its inputs and the choice, plain and replayable."""

from collections.abc import Sequence
from typing import Literal

import msgspec


def exchange_of(quality_target: float) -> float:
    """Return what a strongest answer is worth, in shares of answers as good, to who asks for this target."""
    return 1.0 - quality_target


class Exclusion(msgspec.Struct, frozen=True):
    """A tier that may not serve this request, and why; operators read the reason."""

    tier: int
    reason: str


# Kinds of predictions that a classifier version made; the others say nothing about its quality.
LEARNED_KINDS = ("measured", "prior")
# So many labels of such prompts halve their novelty.
HALF_NOVELTY = 20.0


def tier_novelty(novelty: float, labels: Sequence[float], tier: int) -> float:
    """Return the novelty of a prompt for one tier, in [0, 1]: a prompt of `novelty`, which is that of the tier with
    most labels, is more novel for `tier` where fewer of the `labels` [tiers - 1] are of its answers."""
    own = labels[tier - 1] if tier <= len(labels) else 0.0
    return max(novelty, HALF_NOVELTY / (HALF_NOVELTY + own)) if labels else novelty


class FollowUp(msgspec.Struct, frozen=True, kw_only=True):
    """Whether the newest turn of a conversation goes on with earlier ones: with probability `p`, which weighs its two
    readings. `turns`: the user's turns that it is joined to in one of them, by number from 1; empty where it is read
    alone. `answer`: that reading has what an answer proposed, which the turn accepts."""

    p: float
    turns: tuple[int, ...] = ()
    answer: bool = False

    def __str__(self) -> str:
        """In words, for a decision's reason."""
        if not self.turns:
            return f"a new request ({1 - self.p:.2g})" if self.p < 0.5 else ""
        numbers = " and ".join(map(str, self.turns))
        what = f"turn{'s' if len(self.turns) > 1 else ''} {numbers}{' and its answer' if self.answer else ''}"
        return f"follow-up of {what} ({self.p:.2g})"


class Prediction(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome model's prediction for one prompt.

    `p_ok[k-1]` = P(tier k's answer is no worse than the strongest tier's); the last is 1 (docs/classifier.md). `kind`:
    "prior" while this catalogue's models have no measured outcomes, "heuristic" when the classifier failed, "edge" when
    the fast path did not use it. `novelty` in [0, 1]: how unfamiliar such prompts are for the key, 1 without labels of
    them, by the tier with most labels (`tier_novelty` for one tier). `contributions`: the features with the largest
    effects, as (name, signed effect on the logit of p_ok of tier 1); the length heuristic alone has them.
    `predicted_tokens[k-1]`: expected billed tokens of tier k's answer, None where unknown; empty if unknown for all.
    `classes`: P(SIMPLE, MEDIUM, COMPLEX, EXPERT) if `p_ok` is derived from them, and then P(the answer is good enough);
    else empty. `labels[k-1]`: the number of labelled answers of tier k to such prompts, for this key or, without any,
    its tenant; `good_labels[k-1]` of them were as good as the strongest tier's. Empty without labels. `from_others`:
    labels of other tenants count in it, too, because the request was drawn for that. `material`: the kinds of pasted
    material that was not read, so that it only costs. `follow_up`: how the turn was
    read in its conversation, None without earlier turns.
    """

    p_ok: list[float]
    kind: Literal["measured", "prior", "heuristic", "edge"]
    novelty: float
    classifier_version: str
    contributions: list[tuple[str, float]] = []
    predicted_tokens: list[float | None] = []
    classes: list[float] = []
    labels: list[float] = []
    good_labels: list[float] = []
    from_others: bool = False
    material: list[str] = []
    follow_up: FollowUp | None = None


class EdgePath(msgspec.Struct, frozen=True, kw_only=True):
    """The fast path for short prompts: `tier` goes first. `prompt_tokens` and `new_tokens`: the request's, and the
    operator's limits for the path."""

    tier: int
    prompt_tokens: int
    max_prompt_tokens: int
    new_tokens: int
    max_new_tokens: int


class ConstantTier(msgspec.Struct, frozen=True, kw_only=True):
    """The tier that answers in place of routing, where routing does not pay: for requests that ask for a share no worse
    of at most `meets`, which it was measured to reach."""

    tier: int
    meets: float


class Trouble(msgspec.Struct, frozen=True, kw_only=True):
    """What the rules of trouble in a tool loop say of a step (`docs/agents.md`): `signs` in words. `moves`: whether the
    session goes one tier up because of it; else that is only written down. `propensity`: the probability with which
    `moves` was drawn as it is, 1 where nothing was drawn."""

    signs: str
    moves: bool
    propensity: float


class SessionStep(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of an agent's session before one of its steps, and what its rules make of that.

    `session`: hexadecimal digest of its id. `step` counts its answered requests from 1, `loop_step` those since the
    last boundary. `at`: inside a tool loop, or at which boundary. `gap_seconds`: since the last answer. Since the
    boundary: `errors` in results of tools, `repeats` of the same call; `bad_calls`: calls in a row that the tier could
    not form; `last_exit`: of the last check or command. `end`: how the work before this boundary ended, by `end_sign`
    (`gateway.inference.session_moves`), in `end_words`; `end_weight`: how much it counts as a label.

    `previous`: the tier of the last answer; 0 for a session's first step. `raised_from`: the tier before a move up that
    no good end has followed yet. `floor`: of a subagent, its parent's tier. `prompt_tokens`: an estimate.
    `warm[k-1]`: those that tier k's cache still holds; `strongest_warm`: those that the strongest tier's would hold,
    had it answered all. `rest_usd[k-1]`: expected cost of the rest of the session on tier k, over `rest_steps` steps.

    `rule`: stay on `previous`; up: above it; keep: not below it; rest: the cheapest rest of the session decides between
    it and lower tiers; free: nothing holds. `because`: why, for people. `trouble`: None without signs.
    `p_bad`: P(the loop ends badly), None while that has not been learned.
    """

    session: str
    client: str
    step: int
    loop_step: int
    at: Literal["start", "loop", "turn", "compaction", "gap"]
    gap_seconds: float | None = None
    errors: int = 0
    repeats: int = 0
    bad_calls: int = 0
    last_exit: Literal["passed", "failed"] | None = None
    end: Literal["good", "bad"] | None = None
    end_sign: str | None = None
    end_weight: float = 0.0
    end_words: str = ""
    previous: int = 0
    raised_from: int | None = None
    floor: int | None = None
    prompt_tokens: int = 0
    warm: list[int] = []
    strongest_warm: int = 0
    rest_usd: list[float] = []
    rest_steps: float = 0.0
    rule: Literal["stay", "up", "keep", "rest", "free"] = "free"
    because: str = ""
    trouble: Trouble | None = None
    p_bad: float | None = None


class RuledBy(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The operator's rules that a request matches, by their `names`. What they leave is in the exclusions; here is what
    these do not say: `targets` that may stand in for tiers, None for all, `floor`, the least tier, and the `tier` that
    answers in place of routing, by its own server or by `target`, one that stands for it. A request that names a target
    has these, too, without names of rules."""

    names: list[str]
    targets: list[str] | None = None
    floor: int = 1
    tier: int | None = None
    target: str | None = None


class PricedAgreement(msgspec.Struct, frozen=True, kw_only=True):
    """Agreement as one more action: `tiers` (ascending) answer at once, and `higher` where their answers, whose end is
    of `kind`, differ. They agree with P `agreed`, and an agreed answer is worse with P `lost`; so the action is `worth`
    that much, and the best of single tiers, `alone`, `alone_worth`. `taken`: they were asked. `because`: why they were
    not although they are worth more; else empty."""

    tiers: tuple[int, ...]
    higher: int
    kind: str
    agreed: float
    lost: float
    worth: float
    alone: int
    alone_worth: float
    taken: bool
    because: str = ""

    def __str__(self) -> str:
        """In words, for a decision's reason."""
        asked = f"tiers {' and '.join(map(str, self.tiers))} at once, and tier {self.higher} where they differ,"
        alone = f"{self.alone_worth:.3f} of tier {self.alone} alone"
        if self.taken:
            return f"asking {asked} is worth most, {self.worth:.3f} against {alone}"
        why = f", but {self.because}" if self.because else ""
        return f"asking {asked} would be worth {self.worth:.3f}, against {alone}{why}"


class PolicyInputs(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that `decide` uses; recorded with the request, so that the decision can be replayed.

    `costs[k-1]`: predicted US dollars of answering with tier k, non-decreasing in k. `predicted_waits[k-1]`: predicted
    seconds in tier k's queue; too long a wait is an exclusion. `most_wait_seconds`: a longer queue gives way to a
    higher tier with a shorter one; None where a deadline decides that, or nothing does.

    `objective`: by which a tier is chosen. utility: the one whose answer is worth most, where a strongest answer is
    worth `exchange` and usually costs `reference_usd` (None: as much as this one). target: the cheapest with a `p_ok`
    of at least `tau`, as in records of earlier releases and for the length heuristic. `quality_target`: as requested.
    `min_tier`: the request's minimum tier; `key_min_tier`: its key's. `app`: the hash of the system prompt, which has
    usual prices of its own, "" without one or without consent to learn from it.

    `previous_tier` gave the conversation's last answer. `reuse_usd[k-1]`: the cost that tier k saves because it has the
    conversation's prefix cached; negative where reading it for the first time costs more than `costs` says.
    `in_tool_loop`: the turn brings results of calls that the previous tier made.
    `canary`: the prediction is that of a version on trial.

    `experiment_id` and `arm`: the request's experiment; `arm_tier`: the tier of its arm, if arms are tiers. `unit`: the
    kind and the pseudonym of the user, key or conversation whose requests all have this arm, or of the request alone.
    `observe_tier`: observe mode; this tier answers whatever is chosen. `edge`: the fast path open to the request, which
    precedes the rule. `constant`: what answers in place of routing. `cheapest`: why the cheapest allowed tier answers
    in place of both, None where it does not. `client` and `purpose`: which agent's client sent the request and what
    for, as far as it was recognised; for the record. `session`: the step of an agent's session that the request is.
    `private`: why only local tiers may see the request, as far as a mark says so; the others are exclusions. `rules`:
    what the operator's rules say of it, None if none do. `agreement`: what asking several tiers at once was worth, if
    possible. `fell_over`: what failed after the choice and what took over, in words.
    """

    prediction: Prediction
    costs: list[float]
    quality_target: float
    tau: float
    objective: Literal["utility", "target"] = "target"
    reference_usd: float | None = None
    app: str = ""
    pinned_tier: int | None = None
    min_tier: int | None = None
    key_min_tier: int | None = None
    max_cost_usd: float | None = None
    exclusions: list[Exclusion] = []
    predicted_waits: list[float] = []
    most_wait_seconds: float | None = None
    previous_tier: int | None = None
    reuse_usd: list[float] = []
    in_tool_loop: bool = False
    canary: bool = False
    experiment_id: str | None = None
    arm: str | None = None
    arm_tier: int | None = None
    unit: str | None = None
    observe_tier: int | None = None
    edge: EdgePath | None = None
    constant: ConstantTier | None = None
    cheapest: str | None = None
    client: str | None = None
    purpose: Literal["main", "housekeeping", "compaction", "subagent"] | None = None
    session: SessionStep | None = None
    private: str | None = None
    rules: RuledBy | None = None
    agreement: PricedAgreement | None = None
    fell_over: str | None = None

    @property
    def exchange(self) -> float:
        """What a strongest answer is worth, in shares of answers as good."""
        return exchange_of(self.quality_target)

    @property
    def reference(self) -> float:
        """US dollars that a strongest answer usually costs."""
        return self.costs[-1] if self.reference_usd is None else self.reference_usd

    @property
    def is_constant(self) -> bool:
        """Whether the constant decides: not for a pinned request or one of an experiment, nor for a higher target."""
        if self.constant is None or self.pinned_tier is not None or self.experiment_id is not None:
            return False
        return self.cheapest is None and self.quality_target <= self.constant.meets


class Decision(msgspec.Struct, frozen=True, kw_only=True):
    """The choice and its reason. `scores[k-1]`: by the objective `utility` that of tier k's answer, of which the
    greatest answers; by `target` its share of the strongest tier's cost if it is good enough, else 2 minus that, of
    which the least answers. None if excluded.

    `would_be`: in observe mode the tier that routing would have chosen, while `tier` answers; else None.
    """

    tier: int
    reason: str
    scores: list[float | None]
    inputs: PolicyInputs
    would_be: int | None = None

    @property
    def target(self) -> str | None:
        """The target that answers in place of the tier's own server, because a rule or the request says so."""
        rules = self.inputs.rules
        return None if rules is None or rules.tier != self.tier or self.would_be is not None else rules.target

    @property
    def by_edge(self) -> bool:
        """Whether the fast path chose the tier that answers."""
        edge = self.inputs.edge
        routed = self.would_be is None and not self.inputs.is_constant
        return edge is not None and routed and self.tier == edge.tier
