"""The step of an agent's session that a request is, from what conversations and the knobs say of it."""

import msgspec

from classifier.decision import PolicyInputs, SessionStep
from gateway.base.requests.inference_request import InferenceRequest
from gateway.inference.catalogue.served_catalogue import ServedCatalogue
from gateway.inference.routing.conversations import Conversations, History
from gateway.inference.routing.knobs import RoutingKnobs
from gateway.inference.sessions.learning import SessionLearning
from gateway.inference.sessions.moves import Known, SessionRules, next_step


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
