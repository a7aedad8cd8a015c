"""What routing knows of a request from elsewhere than its text.

Which unit of an experiment it belongs to: its user, its key, its conversation, or the request itself (SPEC QM-11), a
function of the request alone, so that all processes agree without a word to each other. Which step of an agent's
session it is.
"""

import hashlib
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import msgspec

from classifier.decision import PolicyInputs, SessionStep
from classifier.policy.decide import barred_tiers
from classifier.policy.experiment_split import ArmName, Split, SplitBy
from gateway.base.inference_request import InferenceRequest
from gateway.inference.agent_session import SessionLearning
from gateway.inference.conversations import Conversations, History, digested, framed
from gateway.inference.routing_knobs import RoutingKnobs
from gateway.inference.served_catalogue import ServedCatalogue
from gateway.inference.session_moves import Known, next_step
from tiers.conversation import Turn

# How the dashboard's signed-in users are named among keys.
_SIGNED_IN = "user:"


class Unit(NamedTuple):
    """What keeps its arm of an experiment."""

    kind: SplitBy
    """What the unit is."""
    name: str
    """What its arm is a hash of; no two units of an installation share one."""


class Assigned(NamedTuple):
    """A request's place in the experiment `split`."""

    split: Split
    arm: ArmName
    unit: str
    """Kind and pseudonym of its unit, as records keep them."""


def assigned(split: Split, request: InferenceRequest) -> Assigned | None:
    """Return the request's place in the experiment; None for a unit outside its share."""
    unit = unit_of(request, split.by)
    arm = split.arm_of(unit.name)
    return None if arm is None else Assigned(split, arm, f"{unit.kind}:{split.pseudonym(unit.name)}")


def in_experiment(inputs: PolicyInputs, assigned: Assigned) -> PolicyInputs:
    """Return `inputs` with the arm that the request is `assigned` in the experiment.

    A request has no arm if it names a tier, is in a tool loop or goes to the cheapest tier anyway, if its session's
    rule says where it goes, if routing is only observed, if either arm's tier is barred for it (so that both arms draw
    from the same population), or if the heuristic or, during a swap, another version decides.
    """
    ruled = inputs.rules is not None and inputs.rules.tier is not None
    settled = inputs.pinned_tier is not None or inputs.cheapest is not None or ruled
    bound = settled or inputs.in_tool_loop or inputs.observe_tier is not None
    if inputs.session is not None:
        bound = bound or inputs.session.rule in ("stay", "up", "keep")
    if bound or not barred_tiers(inputs).keys().isdisjoint(assigned.split.tiers):
        return inputs
    arm = assigned.split.arm(assigned.arm)
    if inputs.prediction.kind == "heuristic" or arm.version not in (None, inputs.prediction.classifier_version):
        return inputs
    return msgspec.structs.replace(
        inputs, experiment_id=assigned.split.experiment_id, arm=assigned.arm, arm_tier=arm.tier, unit=assigned.unit
    )


def unit_of(request: InferenceRequest, by: SplitBy) -> Unit:
    """Return the request's unit: by `user` or by `key` it is that, if it has one, else conversation, else request.

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


def _opening(messages: Sequence[Turn]) -> Sequence[Turn]:
    first = next((index for index, message in enumerate(messages) if message.role == "user"), None)
    return () if first is None else messages[: first + 1]


def _name(kind: str, parts: Iterable[bytes]) -> str:
    return f"{kind}:{hashlib.blake2b(framed(parts), digest_size=16).hexdigest()}"


class SessionSteps(msgspec.Struct, frozen=True):
    """Where steps are found: the conversations, the catalogue and the knobs of now, and what sessions taught."""

    conversations: Conversations
    served: ServedCatalogue
    knobs: RoutingKnobs
    learning: SessionLearning

    def step_of(
        self, request: InferenceRequest, history: History, pinned: int | None, prompt_tokens: int
    ) -> SessionStep:
        """Return the step with its rule; a request that is `pinned` to a tier has no rule."""
        parent = self.conversations.tier_of_parent(request)
        facts = Known(
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
            facts = msgspec.structs.replace(facts, turn_steps=steps)
        step = next_step(request, facts, self.served.catalog, self.knobs, prompt_tokens, request.created_at)
        if step.at == "loop" and (p_bad := self.learning.p_bad(step, request.caller.tenant)) is not None:
            step = msgspec.structs.replace(step, p_bad=p_bad)
        if pinned is None:
            return step
        return msgspec.structs.replace(step, rule="free", because="", rest_usd=[], trouble=None)

    def _served(self, tier: int | None) -> int | None:
        """The tier's number now: a reload may have made the catalogue shorter."""
        return None if tier is None else min(tier, self.served.strongest)
