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
    readings.
    """

    p: float
    turns: tuple[int, ...] = ()
    """The user's turns that it is joined to in one of the readings, by number from 1; empty where it is read alone."""
    answer: bool = False
    """Whether that reading has what an answer proposed, which the turn accepts."""

    def __str__(self) -> str:
        """In words, for a decision's reason."""
        if not self.turns:
            return f"a new request ({1 - self.p:.2g})" if self.p < 0.5 else ""
        numbers = " and ".join(map(str, self.turns))
        what = f"turn{'s' if len(self.turns) > 1 else ''} {numbers}{' and its answer' if self.answer else ''}"
        return f"follow-up of {what} ({self.p:.2g})"


class Prediction(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome model's prediction for one prompt."""

    p_ok: list[float]
    """P(tier k's answer is no worse than the strongest tier's) for tier k at index k-1; the last is 1
    (docs/classifier.md).
    """
    kind: Literal["measured", "prior", "heuristic", "edge"]
    """"prior" while this catalogue's models have no measured outcomes, "heuristic" when the classifier failed, "edge"
    when the fast path did not use it.
    """
    novelty: float
    """In [0, 1]: how unfamiliar such prompts are for the key, by the tier with most labels (`tier_novelty` for one
    tier); 1 without labels of them.
    """
    classifier_version: str
    contributions: list[tuple[str, float]] = []
    """The features with the largest effects, as (name, signed effect on the logit of p_ok of tier 1); the length
    heuristic alone has them.
    """
    predicted_tokens: list[float | None] = []
    """Expected billed tokens of each tier's answer, None where unknown; empty if unknown for all."""
    classes: list[float] = []
    """P(SIMPLE, MEDIUM, COMPLEX, EXPERT) if `p_ok` is derived from them, and then P(the answer is good enough); else
    empty.
    """
    labels: list[float] = []
    """By tier, the number of labelled answers to such prompts, for this key or, without any, its tenant. Empty without
    labels.
    """
    good_labels: list[float] = []
    """By tier, how many of them were as good as the strongest tier's."""
    from_others: bool = False
    """Whether labels of other tenants count too, because the request was drawn for that."""
    material: list[str] = []
    """The kinds of pasted material that was not read, so that it only costs."""
    follow_up: FollowUp | None = None
    """How the turn was read in its conversation; None without earlier turns."""


class EdgePath(msgspec.Struct, frozen=True, kw_only=True):
    """The fast path for short prompts."""

    tier: int
    """The tier that goes first."""
    prompt_tokens: int
    """Tokens of the request's prompt, within the operator's limit for the path."""
    max_prompt_tokens: int
    new_tokens: int
    """Tokens that the request may generate, within the operator's limit for the path."""
    max_new_tokens: int


class ConstantTier(msgspec.Struct, frozen=True, kw_only=True):
    """The tier that answers in place of routing, where routing does not pay: for requests that ask for a share no worse
    of at most `meets`, which it was measured to reach."""

    tier: int
    meets: float


class Trouble(msgspec.Struct, frozen=True, kw_only=True):
    """What the rules of trouble in a tool loop say of a step (`docs/agents.md`)."""

    signs: str
    """The signs, in words."""
    moves: bool
    """Whether the session goes one tier up because of it; else that is only written down."""
    propensity: float
    """The probability with which `moves` was drawn as it is; 1 where nothing was drawn."""


class SessionRule(msgspec.Struct, frozen=True, kw_only=True):
    """What the rules of an agent's session say of its next step: the part that a decision reads."""

    previous: int = 0
    """The tier of the last answer; 0 for a session's first step."""
    floor: int | None = None
    """The least tier of a subagent: its parent's tier."""
    rule: Literal["stay", "up", "keep", "rest", "free"] = "free"
    """stay: the tier `previous`; up: above it; keep: not below it; rest: the cheapest rest of the session decides
    between it and lower tiers; free: nothing holds.
    """
    because: str = ""
    """The reason, for people."""
    rest_usd: list[float] = []
    """By tier, the expected cost of the rest of the session."""
    rest_steps: float = 0.0
    """The expected number of steps of the rest."""


class SessionWork(SessionRule, frozen=True, kw_only=True):
    """The work before a step, of which a tenant's sessions teach how long turns are and which loops end badly."""

    client: str
    loop_step: int
    """Counts the session's answered requests since the last boundary."""
    at: Literal["start", "loop", "turn", "compaction", "gap"]
    """Whether the step is inside a tool loop, or at which boundary."""
    errors: int = 0
    """Results of tools since the boundary that are errors."""
    repeats: int = 0
    """Calls since the boundary that repeat an earlier one."""
    bad_calls: int = 0
    """Calls in a row that the tier could not form."""
    last_exit: Literal["passed", "failed"] | None = None
    """Exit code of the last check or command."""
    end: Literal["good", "bad"] | None = None
    """How the work before this boundary ended."""
    end_sign: str | None = None
    """The sign by which it ended (`gateway.inference.session_moves`)."""
    end_weight: float = 0.0
    """How much the end counts as a label."""
    end_words: str = ""
    """That sign in words."""


class SessionStep(SessionWork, frozen=True, kw_only=True):
    """What is known of an agent's session before one of its steps, and what its rules make of that."""

    session: str
    """Hexadecimal digest of its id."""
    step: int
    """Counts the session's answered requests from 1."""
    gap_seconds: float | None = None
    """Seconds since the last answer."""
    raised_from: int | None = None
    """The tier before a move up that no good end has followed yet."""
    prompt_tokens: int = 0
    """An estimate of the prompt's tokens."""
    warm: list[int] = []
    """By tier, the prompt tokens that its cache still holds."""
    strongest_warm: int = 0
    """The prompt tokens that the strongest tier's cache would hold, had it answered all."""
    trouble: Trouble | None = None
    """None without signs."""
    p_bad: float | None = None
    """P(the loop ends badly), None while that has not been learned."""


class RuledBy(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The operator's rules that a request matches. What they leave is in the exclusions; here is what these do not say.
    A request that names a target has these, too, without names of rules.
    """

    names: list[str]
    """The rules' names."""
    targets: list[str] | None = None
    """Targets that may stand in for tiers; None for all."""
    floor: int = 1
    """The least tier."""
    tier: int | None = None
    """The tier that answers in place of routing, by its own server or by `target`."""
    target: str | None = None
    """The target that stands in for `tier`."""


class PricedAgreement(msgspec.Struct, frozen=True, kw_only=True):
    """Agreement as one more action: some cheap tiers answer at once, and a higher one where their answers differ."""

    tiers: tuple[int, ...]
    """The tiers that answer at once, ascending."""
    higher: int
    """The tier that answers where they differ."""
    kind: str
    """The kind of the answers' ends."""
    agreed: float
    """P(they agree)."""
    lost: float
    """P(an agreed answer is worse)."""
    worth: float
    """What the action is worth."""
    alone: int
    """The best single tier."""
    alone_worth: float
    """What the best single tier is worth."""
    taken: bool
    """Whether the tiers were asked."""
    because: str = ""
    """Why they were not asked although the action is worth more; else empty."""

    def __str__(self) -> str:
        """In words, for a decision's reason."""
        tiers = " and ".join(map(str, self.tiers))
        alone = f"tier {self.alone} alone has {self.alone_worth:.3f}"
        if self.taken:
            return (
                f"tiers {tiers} answer together, and tier {self.higher} if they differ, because this has the highest "
                f"utility, {self.worth:.3f} ({alone})"
            )
        why = f", but {self.because}" if self.because else ""
        return (
            f"tiers {tiers} together, and tier {self.higher} if they differ, would have a utility of "
            f"{self.worth:.3f} ({alone}){why}"
        )


class Constraints(msgspec.Struct, frozen=True, kw_only=True):
    """What excludes tiers (`classifier.policy.decide.barred_tiers`). Each step of a decision reads its own part of the
    inputs and those of the steps before it.
    """

    costs: list[float]
    """By tier, the predicted US dollars of answering; non-decreasing."""
    pinned_tier: int | None = None
    min_tier: int | None = None
    """The request's minimum tier."""
    key_min_tier: int | None = None
    """The key's minimum tier."""
    max_cost_usd: float | None = None
    exclusions: list[Exclusion] = []


class Holds(Constraints, frozen=True, kw_only=True):
    """What holds back tiers that may answer (`classifier.policy.decide.held_back`): queues, and the conversation."""

    predicted_waits: list[float] = []
    """By tier, the predicted seconds in its queue; too long a wait is an exclusion."""
    most_wait_seconds: float | None = None
    """A longer queue gives way to a higher tier with a shorter one; None where a deadline decides that, or nothing
    does.
    """
    previous_tier: int | None = None
    """The tier that gave the conversation's last answer."""
    reuse_usd: list[float] = []
    """By tier, the cost that it saves because it has the conversation's prefix cached. It is negative where reading the
    prefix for the first time costs more than `costs` says.
    """
    in_tool_loop: bool = False
    """Whether the turn brings results of calls that the previous tier made."""
    session: SessionStep | None = None
    """The step of an agent's session that the request is."""


class Objective(Holds, frozen=True, kw_only=True):
    """What weighs the tiers that are left: predicted quality against cost."""

    prediction: Prediction
    quality_target: float
    """The target that the request asks for."""
    tau: float
    objective: Literal["utility", "target"] = "target"
    """The rule by which a tier is chosen. utility: the one whose answer is worth most, where a strongest answer is
    worth `exchange`. target: the cheapest with a `p_ok` of at least `tau`, as in records of earlier releases and for
    the length heuristic.
    """
    reference_usd: float | None = None
    """By the objective utility, what a strongest answer usually costs; None is as much as this one."""

    @property
    def exchange(self) -> float:
        """What a strongest answer is worth, in shares of answers as good."""
        return exchange_of(self.quality_target)

    @property
    def reference(self) -> float:
        """US dollars that a strongest answer usually costs."""
        return self.costs[-1] if self.reference_usd is None else self.reference_usd


class Overrides(Objective, frozen=True, kw_only=True):
    """What answers in place of the objective's choice."""

    experiment_id: str | None = None
    """The request's experiment."""
    arm: str | None = None
    """The arm of the experiment."""
    arm_tier: int | None = None
    """The tier of the arm, if arms are tiers."""
    edge: EdgePath | None = None
    """The fast path open to the request, which precedes the objective."""
    constant: ConstantTier | None = None
    """The tier that answers in place of routing."""
    cheapest: str | None = None
    """Why the cheapest allowed tier answers in place of routing; None where it does not."""
    rules: RuledBy | None = None
    """What the operator's rules say of it; None if none match."""
    observe_tier: int | None = None
    """In observe mode, the tier that answers whatever is chosen."""

    @property
    def is_constant(self) -> bool:
        """Whether the constant decides: not for a pinned request or one of an experiment, nor for a higher target."""
        if self.constant is None or self.pinned_tier is not None or self.experiment_id is not None:
            return False
        return self.cheapest is None and self.quality_target <= self.constant.meets


class PolicyInputs(Overrides, frozen=True, kw_only=True):
    """Everything that `decide` uses; recorded with the request, so that the decision can be replayed. Its own fields
    choose no tier: the decision's reason and the record have them.
    """

    app: str = ""
    """The hash of the system prompt, which has usual prices of its own; "" without one or without consent to learn from
    it.
    """
    canary: bool = False
    """Whether the prediction is that of a version on trial."""
    unit: str | None = None
    """The kind and the pseudonym of the user, key or conversation whose requests all have this arm, or of the request
    alone.
    """
    client: str | None = None
    """Which agent's client sent the request, as far as it was recognised; for the record."""
    purpose: Literal["main", "housekeeping", "compaction", "subagent"] | None = None
    """What the client sent it for, as far as that was recognised; for the record."""
    private: str | None = None
    """Why only local tiers may see the request, as far as a mark says so; the other tiers are exclusions."""
    agreement: PricedAgreement | None = None
    """What asking several tiers at once was worth, if possible."""
    fell_over: str | None = None
    """What failed after the choice and what took over, in words."""


class Decision(msgspec.Struct, frozen=True, kw_only=True):
    """The choice and its reason."""

    tier: int
    reason: str
    scores: list[float | None]
    """By tier; None if it is excluded. By the objective `utility`: what its answer is worth, of which the greatest
    answers. By `target`: its share of the strongest tier's cost if it is good enough, else 2 minus that, of which the
    least answers.
    """
    inputs: PolicyInputs
    would_be: int | None = None
    """In observe mode the tier that routing would have chosen, while `tier` answers; else None."""

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
