"""The live knobs of routing."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from classifier.opening import FIRST_TOKENS
from classifier.quality_setting import QualitySetting
from gateway.errors import bad_request
from gateway.knobs.file import KnobFile
from tiers.tier_spec import MAX_TIERS, TierNumber

# Knobs of earlier releases: files that name them are read as if they did not.
RETIRED = frozenset({"novelty_threshold", "safe_tier", "novelty_fallback", "auto_promotion", "promotion_cost_share"})


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
    quality_target: Annotated[
        QualitySetting | None,
        Meta(
            description="Share of answers no worse than the strongest tier's where neither request nor key asks for "
            "one: 0 to 1, economy, balanced or careful; null is AIO_QUALITY_TARGET, else the classifier's own."
        ),
    ] = None
    conversations: Annotated[
        bool, Meta(description="Whether a tool loop keeps its tier and a conversation moves down only if that pays.")
    ] = True
    conversation_seconds: Annotated[
        float, Meta(ge=1, le=86_400, description="Seconds for which a conversation's tier is remembered.")
    ] = 3600.0
    stage_2: Annotated[
        bool,
        Meta(description="Whether the prompt's hidden state may hand an answer to the next tier."),
    ] = True
    stage_3: Annotated[
        bool, Meta(description="Whether the tokens of an answer may: a stream's opening, a whole answer's all.")
    ] = True
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
        int, Meta(ge=0, le=FIRST_TOKENS, description="Tokens of a stream held until stage 3 has spoken; 0 never holds.")
    ] = FIRST_TOKENS


class RoutingKnobFile(KnobFile[RoutingKnobs]):
    """The knobs of routing in force, from `path`; None keeps them in memory alone.

    `tiers`: of the catalogue; a change that names a tier beyond them is refused. A file that names one, written for a
    longer catalogue, stays in force: the strongest tier stands for it, and there is no fast path.
    """

    def __init__(self, path: Path | None = None, tiers: int = MAX_TIERS) -> None:
        self._tiers = tiers
        super().__init__(RoutingKnobs, "routing", path, RETIRED)

    def change(self, changes: Mapping[str, Any]) -> tuple[RoutingKnobs, RoutingKnobs]:
        """See `KnobFile.change`."""
        for name in ("observe_tier", "edge_tier"):
            wanted = changes.get(name)
            if isinstance(wanted, int) and wanted > self._tiers:
                raise bad_request(
                    f"Invalid {name}: {wanted}; the catalogue has tiers 1 to {self._tiers}.", name, "invalid_value"
                )
        return super().change(changes)
