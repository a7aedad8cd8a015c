"""What routing knows of a request from elsewhere than its text.

Which unit of an experiment it belongs to: its user, its key, its conversation, or the request itself (SPEC QM-11), a
function of the request alone, so that all processes agree without a word to each other. Which step of an agent's
session it is. And what a strongest answer usually costs its caller: the reference in which routing counts the
dollars of a prompt.
"""

import hashlib
import time
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import msgspec
from sqlalchemy.ext.asyncio import AsyncEngine

from classifier.decision import PolicyInputs, SessionStep
from classifier.policy.decide import barred_tiers
from classifier.policy.experiment_split import ArmName, Split, SplitBy
from gateway.base.inference_request import InferenceRequest
from gateway.inference.agent_session import SessionLearning
from gateway.inference.conversations import Conversations, History, digested
from gateway.inference.routing_knobs import RoutingKnobs
from gateway.inference.served_catalogue import ServedCatalogue
from gateway.inference.session_moves import Known, SessionRules, next_step
from quality.store.queries import strongest_prices
from tiers.tier import ChatMessage

# How the dashboard's signed-in users are named among keys.
_SIGNED_IN = "user:"


class Unit(NamedTuple):
    """`kind`: what the unit is. `name`: what its arm is a hash of; no two units of an installation share one."""

    kind: SplitBy
    name: str


class Assigned(NamedTuple):
    """A request's place in the experiment `split`. `unit`: kind and pseudonym of its unit, as records keep them."""

    split: Split
    arm: ArmName
    unit: str


def assigned(split: Split, request: InferenceRequest) -> Assigned | None:
    """Return the request's place in the experiment; None for a unit outside its share."""
    unit = unit_of(request, split.by)
    arm = split.arm_of(unit.name)
    return None if arm is None else Assigned(split, arm, f"{unit.kind}:{split.pseudonym(unit.name)}")


def in_experiment(inputs: PolicyInputs, place: Assigned) -> PolicyInputs:
    """Return `inputs` with the arm of the request's `place` in the experiment.

    A request has no arm if it names a tier, is in a tool loop or goes to the cheapest tier anyway, if its session's
    rule says where it goes, if routing is only observed, if either arm's tier is barred for it (so that both arms draw
    from the same population), or if the heuristic or, during a swap, another version decides.
    """
    ruled = inputs.rules is not None and inputs.rules.tier is not None
    settled = inputs.pinned_tier is not None or inputs.cheapest is not None or ruled
    bound = settled or inputs.in_tool_loop or inputs.observe_tier is not None
    if inputs.session is not None:
        bound = bound or inputs.session.rule in ("stay", "up", "keep")
    if bound or not barred_tiers(inputs).keys().isdisjoint(place.split.tiers):
        return inputs
    arm = place.split.arm(place.arm)
    if inputs.prediction.kind == "heuristic" or arm.version not in (None, inputs.prediction.classifier_version):
        return inputs
    return msgspec.structs.replace(
        inputs, experiment_id=place.split.experiment_id, arm=place.arm, arm_tier=arm.tier, unit=place.unit
    )


def unit_of(request: InferenceRequest, by: SplitBy) -> Unit:
    """Return the request's unit: by `user` or by `key` it is that, where the request has one, else the conversation,
    else the request itself.

    A user belongs to the tenant, and a conversation to the caller's key. A conversation without an id of its own is
    known by its messages up to the first of the user, which all of its turns repeat; unlike in
    `gateway.inference.conversations`, nothing has to be remembered. A client that cuts off the
    beginning thereby starts another conversation.
    """
    caller = request.caller
    if by == "user" and (user := _user_of(request)):
        return Unit("user", _name("user", [caller.tenant.encode(errors="replace"), user.encode(errors="replace")]))
    if by == "key" and caller.key_id:
        return Unit("key", _name("key", [caller.key_id.encode(errors="replace")]))
    if by != "request" and (parts := _conversation_of(request)):
        return Unit("conversation", _name("conversation", [(caller.key_id or "").encode(errors="replace"), *parts]))
    return Unit("request", request.request_id)


def _user_of(request: InferenceRequest) -> str:
    key_id = request.key_id or ""
    return request.user or (key_id if key_id.startswith(_SIGNED_IN) else "")


def _conversation_of(request: InferenceRequest) -> list[bytes]:
    """What makes the conversation unlike others of its key; empty without one."""
    if request.options.conversation is not None:
        return [b"id", request.options.conversation.encode(errors="replace")]
    opening = _opening(request.generation.messages or ())
    return [part for message in opening for part in digested(message)]


def _opening(messages: Sequence[ChatMessage]) -> Sequence[ChatMessage]:
    first = next((place for place, message in enumerate(messages) if message.role == "user"), None)
    return () if first is None else messages[: first + 1]


def _name(kind: str, parts: Iterable[bytes]) -> str:
    digest = hashlib.blake2b(digest_size=16)
    for part in parts:
        # The length goes first, so that no two lists of parts run into the same bytes.
        digest.update(len(part).to_bytes(8, "little"))
        digest.update(part)
    return f"{kind}:{digest.hexdigest()}"


class SessionSteps(msgspec.Struct, frozen=True):
    """Where steps are found: the conversations, the catalogue and the knobs of now, and what sessions taught."""

    conversations: Conversations
    served: ServedCatalogue
    knobs: RoutingKnobs
    learning: SessionLearning

    def step_of(
        self, request: InferenceRequest, history: History, inputs: PolicyInputs, prompt_tokens: int
    ) -> SessionStep:
        """Return the step with its rule, which a pinned request has none of. `inputs`: of its decision, without it."""
        parent = self.conversations.tier_of_parent(request)
        known = Known(
            id=self.conversations.id_of(request, history),
            session=history.session,
            previous=self._served(history.tiers[-1] if history.tiers else None),
            history_tokens=history.tokens,
            in_tool_loop=history.in_tool_loop,
            parent=self._served(parent),
        )
        if history.tiers:
            client = "" if request.client is None else request.client.client
            loop_step = 1 if history.session is None or not history.in_tool_loop else history.session.loop_steps + 1
            steps = self.learning.turn_steps(request.caller.tenant, client, request.key_id or "", loop_step)
            known = msgspec.structs.replace(known, turn_steps=steps)
        rules, catalog = session_rules(self.knobs), self.served.catalog
        step = next_step(request, known, catalog, rules, prompt_tokens, request.created_at)
        if step.at == "loop" and (p_bad := self.learning.p_bad(step, request.caller.tenant)) is not None:
            step = msgspec.structs.replace(step, p_bad=p_bad)
        if inputs.pinned_tier is None:
            return step
        return msgspec.structs.replace(step, rule="free", because="", rest_usd=[], trouble=None)

    def _served(self, tier: int | None) -> int | None:
        """The tier's number now: a reload may have made the catalogue shorter."""
        return None if tier is None else min(tier, self.served.strongest)


def session_rules(knobs: RoutingKnobs) -> SessionRules:
    """The rules of agents' sessions that `knobs` set."""
    return SessionRules(
        after_bad_end=knobs.agents_after_bad_end == "up",
        boundary=knobs.agents_boundary == "rest",
        trouble=knobs.agents_trouble,
        trouble_share=knobs.agents_trouble_share,
        cache_seconds=knobs.agents_cache_seconds,
        compaction=knobs.agents_compaction == "stay",
        subagent_floor=knobs.agents_subagents == "floor",
    )


# Of a key or a system prompt: the prompt's own price counts as so many earlier ones, so that on the first day prompts
# are not compared with each other, and no prompt looks more than (n + 10) / 10 times as dear as it is.
OWN_WEIGHT = 10.0
# A mean is over about so many of the newest requests.
NEWEST = 1000
# Keys and system prompts that are remembered, about 200 bytes each.
MOST = 20_000


class ReferencePrices:
    """Running means, in US dollars, of the strongest tier's predicted price: of each key's prompts, and of those with
    each of its system prompts. This process's requests since its start or the last change of prices, and those of
    earlier processes, at the prices of their time; of system prompts, those of callers who consent to learning."""

    def __init__(self) -> None:
        self._began = time.time()
        self._means: OrderedDict[tuple[str, str], tuple[float, float]] = OrderedDict()

    def of(self, key: str, app: str, usd: float) -> float:
        """Return the reference for a prompt whose strongest answer is predicted to cost `usd`: the mean of its system
        prompt `app` (a hash, "" without one), towards that of its `key`, towards `usd` itself."""
        found = self._towards((key, ""), usd)
        return self._towards((key, app), found) if app else found

    def observe(self, key: str, app: str, usd: float) -> None:
        """Count a request that is being answered."""
        self._count((key, ""), usd)
        if app:
            self._count((key, app), usd)

    async def restore(self, database: AsyncEngine, tiers: int) -> None:
        """Count the newest stored requests, of any process, from before this one began."""
        for key, app, usd in await strongest_prices(database, tiers, self._began, NEWEST):
            self.observe(key, app, usd)

    def clear(self) -> None:
        """Forget all means, because prices have changed."""
        self._means.clear()

    def _towards(self, place: tuple[str, str], parent: float) -> float:
        count, mean = self._means.get(place, (0.0, 0.0))
        return (OWN_WEIGHT * parent + count * mean) / (OWN_WEIGHT + count)

    def _count(self, place: tuple[str, str], usd: float) -> None:
        means = self._means
        if (known := means.get(place)) is None:
            means[place] = (1.0, usd)
            if len(means) > MOST:
                means.popitem(last=False)
            return
        count = known[0] + 1.0 if known[0] < NEWEST else NEWEST
        means[place] = (count, known[1] + (usd - known[1]) / count)
        means.move_to_end(place)
