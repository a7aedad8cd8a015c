"""The live knobs of routing, and the utility by which a catalogue serves now: what trials, experiments and retrainings
compare versions by."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from classifier.class_predictor import threshold_of
from classifier.complexity.quality_setting import QualitySetting, target_of
from gateway.base.errors import bad_request
from gateway.base.knobs import KnobFile
from gateway.base.settings import Settings
from quality.comparison.decision_gain import Serving
from tiers.catalog.catalog import Catalog
from tiers.catalog.pricing import predicted_costs
from tiers.catalog.tier_spec import MAX_TIERS, TierNumber

MAX_HOLD_TOKENS = 256


class RoutingKnobs(msgspec.Struct, frozen=True, kw_only=True):
    """What an operator may change while serving; the bounds are enforced and the descriptions shown."""

    mode: Annotated[
        Literal["route", "observe"],
        Meta(
            description="route: the decision counts. observe: one tier answers everything, and AIO records what "
            "routing would have chosen."
        ),
    ] = "route"
    observe_tier: Annotated[
        TierNumber | None,
        Meta(description="In observe mode, the tier that answers requests that name none. null: the strongest."),
    ] = None
    shadow_share: Annotated[
        float,
        Meta(
            ge=0,
            le=1,
            description="In observe mode, the largest share of requests that routing's tier answers too, in the "
            "background and within the budget of verification. 0: none.",
        ),
    ] = 0.05
    quality_target: Annotated[
        QualitySetting | None,
        Meta(
            description="The quality target of requests, unless the request, its key or a rule sets one. With a "
            "target t, the price of a strongest answer is worth 1 - t, as a share of good enough answers. A number "
            "from 0 to 1, economy (0.5), balanced (0.7) or careful (0.9). null: AIO_QUALITY_TARGET, else the "
            "classifier's own."
        ),
    ] = None
    constant: Annotated[
        Literal["off", "propose", "act"],
        Meta(
            description="What happens if routing does not pay. propose: AIO proposes one tier for everything. "
            "act: that tier answers, unless it costs more than routing or misses the quality target. off: nothing."
        ),
    ] = "propose"
    constant_worth: Annotated[
        float,
        Meta(
            ge=0.002,
            le=0.5,
            description="How much utility routing must gain to pay, as a share of good enough answers.",
        ),
    ] = 0.01
    conversations: Annotated[
        bool, Meta(description="Whether a tool loop keeps its tier, and a conversation moves down only if that pays.")
    ] = True
    conversation_seconds: Annotated[
        float, Meta(ge=1, le=86_400, description="For how many seconds AIO remembers a conversation's tier.")
    ] = 3600.0
    cache_reuse: Annotated[
        float,
        Meta(
            ge=0,
            le=1,
            description="The expected share of a conversation's steps, from the second on, that read its beginning "
            "again while the provider caches it. If that pays for the write and the caller sets no marks, AIO marks "
            "tools, system prompt and last turn for Anthropic. 0: never.",
        ),
    ] = 0.6
    agents_housekeeping: Annotated[
        Literal["cheapest", "route"],
        Meta(
            description="Where AIO sends titles, topic checks and commit messages of agents, and titles, tags, "
            "follow-up questions and search queries of chat front ends. cheapest: to the cheapest tier that may "
            "answer. route: where routing sends them."
        ),
    ] = "cheapest"
    agents: Annotated[
        bool,
        Meta(
            description="Whether AIO follows sessions of agents: requests with tools, and requests of agents' "
            "clients. Off: it treats them like other conversations."
        ),
    ] = True
    agents_after_bad_end: Annotated[
        Literal["up", "off"],
        Meta(
            description="What happens if the messages show that an agent's work ended badly. up: the next turn goes "
            "one tier up, and a later one goes back after a good end. off: nothing."
        ),
    ] = "up"
    agents_cache_seconds: Annotated[
        float,
        Meta(ge=0, le=86_400, description="For how many seconds a provider's cache is expected to hold a session."),
    ] = 300.0
    agents_trouble: Annotated[
        Literal["off", "observe", "act"],
        Meta(
            description="Whether errors and repetitions in a tool loop move it one tier up. observe: AIO records what "
            "it would do, and moves the share agents_trouble_share at random. act: it moves all of them. off: it "
            "moves none."
        ),
    ] = "observe"
    agents_trouble_share: Annotated[
        float,
        Meta(
            ge=0,
            le=0.5,
            description="In observe mode of agents_trouble, the share of the sessions in trouble that AIO moves at "
            "random, to measure what a move is worth. It moves only sessions whose texts may be reused. 0: none.",
        ),
    ] = 0.02
    judge_answers: Annotated[
        bool,
        Meta(
            description="Whether the next tier may take over before anything is sent, if an answer's own evidence "
            "speaks against it."
        ),
    ] = True
    agreement: Annotated[
        Literal["off", "verified", "always"],
        Meta(
            description="Whether cheap tiers answer at the same time, and the strongest only if they differ. "
            "verified: if that is certainly worth more than any tier alone, or if a request asks for it. always: for "
            "all requests. off: never."
        ),
    ] = "verified"
    streams_may_wait: Annotated[
        bool,
        Meta(
            description="Whether the first byte of a stream may wait until cheap answers are compared, if that pays. "
            "A request can say so for itself with x-aio-may-wait."
        ),
    ] = False
    streams_continue: Annotated[
        Literal["off", "auto"],
        Meta(
            description="Whether a stream goes on if its server fails after the first token, at the same tier or at "
            "another one that can. A request can say so for itself with x-aio-continue."
        ),
    ] = "off"
    queue_seconds: Annotated[
        float,
        Meta(
            ge=0,
            le=3600,
            description="If a tier's queue is predicted to take longer than this, a request without a deadline goes "
            "to a higher tier with a shorter queue, for a higher price. Batch requests wait. 0: all requests wait.",
        ),
    ] = 0.0
    truncate_chats: Annotated[
        bool,
        Meta(
            description="Whether a chat that is too long for every tier loses its oldest turns instead of being "
            "refused. System messages at its beginning stay."
        ),
    ] = False
    budget_limit: Annotated[
        Literal["learned", "whole"],
        Meta(
            description="The limit of an answer under a budget if the caller sets none. learned: a quarter more than "
            "99% of the tier's answers need, lowered to what is left. whole: what the model may answer."
        ),
    ] = "learned"
    budget_limit_start: Annotated[
        int,
        Meta(
            ge=256,
            le=1_000_000,
            description="The learned limit is at least this many tokens while fewer than 100 answers of a tier are "
            "known, and four times as many for a model that thinks.",
        ),
    ] = 4096
    budget_limit_least: Annotated[
        int,
        Meta(
            ge=1,
            le=1_000_000,
            description="AIO does not lower the learned limit below this many tokens. It refuses the request instead.",
        ),
    ] = 256
    budget_wait_seconds: Annotated[
        float,
        Meta(
            ge=0,
            le=60,
            description="Requests in flight usually cost less than the budget holds for them. For this many seconds "
            "AIO waits for them, before it refuses a request or lowers its limit to less than half.",
        ),
    ] = 5.0
    edge_max_prompt_tokens: Annotated[
        int,
        Meta(
            ge=0,
            le=4096,
            description="Prompts of at most this many tokens go to edge_tier without the classifier. 0: none.",
        ),
    ] = 0
    edge_max_new_tokens: Annotated[
        int,
        Meta(
            ge=1,
            le=4096,
            description="The most tokens for which such a request may ask. A request without a limit does not go "
            "there.",
        ),
    ] = 64
    edge_tier: Annotated[
        int, Meta(ge=1, le=MAX_TIERS, description="The tier of the fast path. It must be one that AIO runs itself.")
    ] = 1
    hold_tokens: Annotated[
        int,
        Meta(
            ge=0,
            le=MAX_HOLD_TOKENS,
            description="How many tokens of a stream AIO holds back to judge the answer. 0: none, and streams are not "
            "judged.",
        ),
    ] = 0


class RoutingKnobFile(KnobFile[RoutingKnobs]):
    """The current knobs of routing, from `path`; None keeps them in memory alone.

    `tiers`: of the catalogue; a change that names a tier beyond them is refused. A file that names one, written for a
    longer catalogue, still applies: the strongest tier stands for it, and there is no fast path.
    """

    def __init__(self, path: Path | None = None, tiers: int = MAX_TIERS) -> None:
        self._tiers = tiers
        super().__init__(RoutingKnobs, "routing", path)

    def change(self, changes: Mapping[str, Any]) -> tuple[RoutingKnobs, RoutingKnobs]:
        for name in ("observe_tier", "edge_tier"):
            wanted = changes.get(name)
            if isinstance(wanted, int) and wanted > self._tiers:
                raise bad_request(
                    f"Invalid {name}: {wanted}; the catalogue has tiers 1 to {self._tiers}.", name, "invalid_value"
                )
        return super().change(changes)


def objective_of(settings: Settings, catalog: Catalog) -> Serving:
    """Return the quality target by the knobs, else by the settings, and a usual request's cost at each tier."""
    knob = RoutingKnobFile(settings.routing_knobs_path).active.quality_target
    costs = predicted_costs(catalog, catalog.reference_prompt_tokens, None)
    return Serving(
        target=threshold_of(target_of(settings.quality_target if knob is None else knob)),
        cost_shares=[cost / costs[-1] for cost in costs],
    )
