"""The live knobs of routing: kept in one small file of the data folder that every gateway process follows."""

import asyncio
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from classifier.opening import FIRST_TOKENS
from gateway.knob_values import check_knobs, file_state
from inference_core.loaders.atomic_file import atomic_file

log = logging.getLogger(__name__)


class RoutingKnobs(msgspec.Struct, frozen=True, kw_only=True):
    """What an operator may change while serving; the bounds are enforced and the descriptions shown."""

    mode: Annotated[
        Literal["route", "observe"],
        Meta(description="route: the decision holds. observe: one tier answers all, what would be is written down."),
    ] = "route"
    observe_tier: Annotated[
        Annotated[int, Meta(ge=1, le=4)] | None,
        Meta(description="The tier that answers what names none while observing, 1 to 4; null is the strongest."),
    ] = None
    novelty_threshold: Annotated[
        Annotated[float, Meta(ge=0, le=1)] | None,
        Meta(description="Novelty from which a prompt gets the safe tier, 0 to 1; null is the classifier's own."),
    ] = None
    safe_tier: Annotated[
        Annotated[int, Meta(ge=1, le=4)] | None,
        Meta(description="The least tier of novel prompts, 1 to 4; null is the classifier's own."),
    ] = None
    novelty_fallback: Annotated[bool, Meta(description="Whether novel prompts get the safe tier at all.")] = True
    auto_promotion: Annotated[
        bool, Meta(description="Whether bad verified outcomes nearby lower a tier's chances before any retraining.")
    ] = True
    promotion_cost_share: Annotated[
        float,
        Meta(ge=0, le=10, description="What that may add to the last day's serving cost, as a share of it."),
    ] = 0.1
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
    hold_tokens: Annotated[
        int, Meta(ge=0, le=FIRST_TOKENS, description="Tokens of a stream held until stage 3 has spoken; 0 never holds.")
    ] = FIRST_TOKENS


KNOB_NAMES = RoutingKnobs.__struct_fields__


class RoutingKnobFile:
    """The knobs in force, from `path`; None keeps them in memory alone.

    A file that cannot be used changes nothing: the knobs before it stay, and the log says why.
    """

    def __init__(self, path: Path | None = None) -> None:
        self._path = path
        self._seen: tuple[int, int] | None = None
        self.in_force = RoutingKnobs()
        self.refresh()

    def refresh(self) -> None:
        """Read the file again if it has changed; never raises."""
        state = file_state(self._path)
        if self._path is None or state is None or state == self._seen:
            return
        self._seen = state
        try:
            self.in_force = _checked(msgspec.json.decode(self._path.read_bytes(), type=dict[str, Any]))
        except Exception as error:
            log.error("routing knobs stay as they are: %s: %s", self._path, error)

    async def follow(self, seconds: float) -> None:
        """Look at the file every `seconds`."""
        while True:
            await asyncio.sleep(seconds)
            self.refresh()

    def change(self, changes: Mapping[str, Any]) -> tuple[RoutingKnobs, RoutingKnobs]:
        """Put `changes` in force, all or none, here at once and in other processes soon; (before, after).

        None puts a knob back to its default. Raises `ApiError` 400 naming the knob, and OSError if the file cannot
        be written; then nothing has changed.
        """
        before = self.in_force
        after = _checked(msgspec.structs.asdict(before) | dict(changes))
        if self._path is not None:
            with atomic_file(self._path) as file:
                file.write(msgspec.json.format(msgspec.json.encode(after), indent=2) + b"\n")
            self._seen = file_state(self._path)
        self.in_force = after
        return before, after


def knob_schemas() -> dict[str, dict[str, Any]]:
    """By knob its JSON schema: type, bounds, default and description."""
    properties: dict[str, dict[str, Any]] = msgspec.json.schema(RoutingKnobs)["$defs"]["RoutingKnobs"]["properties"]
    return properties


def _checked(values: Mapping[str, Any]) -> RoutingKnobs:
    defaults = msgspec.structs.asdict(RoutingKnobs())
    given = {name: defaults.get(name) if value is None else value for name, value in values.items()}
    check_knobs(given, RoutingKnobs, "routing knob")
    return msgspec.convert(given, RoutingKnobs)
