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
        Meta(description="route: the decision holds. observe: one tier answers all, what would be is written down."),
    ] = "route"
    observe_tier: Annotated[
        TierNumber | None,
        Meta(description="The tier that answers what names none while observing; null is the strongest."),
    ] = None
    shadow_share: Annotated[
        float,
        Meta(
            ge=0,
            le=1,
            description="Most of the observed requests that the tier of routing answers too, in the background and "
            "within the budget of verification; 0: none.",
        ),
    ] = 0.05
    quality_target: Annotated[
        QualitySetting | None,
        Meta(
            description="What quality is worth where neither request nor key says it: at a target t a strongest answer "
            "is worth 1 - t, in shares of answers as good. 0 to 1, economy (0.5), balanced (0.7) or careful (0.9); "
            "null is AIO_QUALITY_TARGET, else the classifier's own."
        ),
    ] = None
    constant: Annotated[
        Literal["off", "propose", "act"],
        Meta(
            description="Where routing does not pay, whether a constant tier is proposed, or answers; act never takes "
            "one that costs more than routing or meets less than the quality target."
        ),
    ] = "propose"
    constant_worth: Annotated[
        float,
        Meta(
            ge=0.002,
            le=0.5,
            description="Utility that routing must gain to be worth it, in shares of answers as good.",
        ),
    ] = 0.01
    conversations: Annotated[
        bool, Meta(description="Whether a tool loop keeps its tier and a conversation moves down only if that pays.")
    ] = True
    conversation_seconds: Annotated[
        float, Meta(ge=1, le=86_400, description="Seconds for which a conversation's tier is remembered.")
    ] = 3600.0
    cache_reuse: Annotated[
        float,
        Meta(
            ge=0,
            le=1,
            description="Expected share of a conversation's steps, from the second on, whose beginning is read again "
            "while the provider caches it. Where that pays for the write and the caller marks nothing, requests to "
            "Anthropic mark tools, system prompt and last turn; 0 never marks.",
        ),
    ] = 0.6
    agents_housekeeping: Annotated[
        Literal["cheapest", "route"],
        Meta(
            description="Where agents' titles, topic checks and commit messages go, and titles, tags, follow-up "
            "questions and search queries of chat front ends. cheapest: to the cheapest tier that may answer. route: "
            "where routing sends them."
        ),
    ] = "cheapest"
    agents: Annotated[
        bool,
        Meta(
            description="Whether sessions of agents are followed: requests with tools, and those of agents' clients. "
            "Off: they are conversations as any others."
        ),
    ] = True
    agents_after_bad_end: Annotated[
        Literal["up", "off"],
        Meta(
            description="What follows a bad end of an agent's work, as its messages show it. up: the next turn goes "
            "one tier up, and back at a later one after a good end. off: nothing."
        ),
    ] = "up"
    agents_cache_seconds: Annotated[
        float,
        Meta(ge=0, le=86_400, description="Seconds for which a provider's cache is expected to hold a session."),
    ] = 300.0
    agents_trouble: Annotated[
        Literal["off", "observe", "act"],
        Meta(
            description="Whether errors and repeats in a tool loop move it one tier up. observe: it is recorded what "
            "would be, and the share agents_trouble_share is moved at random. act: all are."
        ),
    ] = "observe"
    agents_trouble_share: Annotated[
        float,
        Meta(
            ge=0,
            le=0.5,
            description="Share of the sessions in trouble that are moved at random while it is observed, to measure "
            "what a move is worth; only those whose texts may be reused. 0: none.",
        ),
    ] = 0.02
    judge_answers: Annotated[
        bool, Meta(description="Whether an answer's own evidence may hand it to the next tier before anything is sent.")
    ] = True
    agreement: Annotated[
        Literal["off", "verified", "always"],
        Meta(
            description="Whether cheap tiers answer at once and the strongest only where they differ. verified: where "
            "that is certainly worth more than any tier alone, or a request asks. always: all ask. off: never."
        ),
    ] = "verified"
    streams_may_wait: Annotated[
        bool,
        Meta(
            description="Whether the first byte of a stream may wait for cheap answers that are compared, where that "
            "pays; a request says so for itself with x-aio-may-wait."
        ),
    ] = False
    streams_continue: Annotated[
        Literal["off", "auto"],
        Meta(
            description="Whether a stream whose server fails after the first token goes on, at the same tier or at "
            "another one that can; a request says so for itself with x-aio-continue."
        ),
    ] = "off"
    queue_seconds: Annotated[
        float,
        Meta(
            ge=0,
            le=3600,
            description="Predicted seconds of a tier's queue beyond which a request without a deadline goes to a "
            "higher tier with a shorter queue, for a higher price; batch requests wait; 0: all do.",
        ),
    ] = 0.0
    truncate_chats: Annotated[
        bool,
        Meta(
            description="Whether a chat that is too long for every tier loses its oldest turns instead of being "
            "refused; system messages at its beginning stay."
        ),
    ] = False
    budget_limit: Annotated[
        Literal["learned", "whole"],
        Meta(
            description="The limit of an answer under a budget whose caller sets none. learned: what 99% of the tier's "
            "answers do not exceed, and a quarter more, lowered to what is left. whole: what the model may answer."
        ),
    ] = "learned"
    budget_limit_start: Annotated[
        int,
        Meta(
            ge=256,
            le=1_000_000,
            description="Tokens of that limit while fewer than 100 answers of a tier are known; of a model that "
            "thinks four times as many.",
        ),
    ] = 4096
    budget_limit_least: Annotated[
        int,
        Meta(ge=1, le=1_000_000, description="Tokens below which that limit is not lowered; the request is refused."),
    ] = 256
    budget_wait_seconds: Annotated[
        float,
        Meta(
            ge=0,
            le=60,
            description="Seconds that a request waits for others in flight, which cost less than the budget holds for "
            "them, before half its limit is not enough or it is refused.",
        ),
    ] = 5.0
    edge_max_prompt_tokens: Annotated[
        int,
        Meta(
            ge=0, le=4096, description="Most tokens of a prompt that goes to edge_tier without the classifier; 0: none."
        ),
    ] = 0
    edge_max_new_tokens: Annotated[
        int,
        Meta(ge=1, le=4096, description="Most tokens that such a request may ask for; one without a limit does not."),
    ] = 64
    edge_tier: Annotated[
        int, Meta(ge=1, le=MAX_TIERS, description="The tier of the fast path; only one that runs in process.")
    ] = 1
    hold_tokens: Annotated[
        int,
        Meta(
            ge=0,
            le=MAX_HOLD_TOKENS,
            description="Tokens of a stream held back to be judged by; 0 never holds, and streams are not judged.",
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
