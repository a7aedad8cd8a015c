"""Routing: from an InferenceRequest to a Decision, on the CPU alone and in well under a millisecond.

The edge-first fast path: a short prompt with a small token budget goes to a local tier without being classified.
"""

import logging
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING

import msgspec

from classifier.complexity.quality_setting import QualitySetting, target_of
from classifier.decision import ConstantTier, Decision, EdgePath, Exclusion, PolicyInputs, SessionStep
from classifier.errors import ClassifierError, NoTierAllowedError
from classifier.features.routing_input import RoutingInput
from classifier.policy.decide import barred_tiers, decide, heuristic_prediction, may_answer
from classifier.policy.experiment_split import ArmName
from gateway.base.errors import ApiError, bad_request
from gateway.base.inference_request import SLO_CLASSES, InferenceRequest
from gateway.inference.agent_session import (
    Answered,
    Session,
    SessionLearning,
    after,
    cheapest_because,
    is_followed,
    is_housekeeping,
)
from gateway.inference.answer_limits import AnswerLengths
from gateway.inference.classifier_versions import (
    Classifier,
    EncodesAhead,
    Routed,
    RoutingRule,
    VersionPrediction,
    drawn_for_others,
    routing_input_of,
)
from gateway.inference.conversations import Conversations, History, circumstances
from gateway.inference.exclusions import (
    Excluded,
    count_in_doubt,
    exclusions,
    explain_privacy,
    is_in_doubt,
    no_tier,
    not_allowed,
)
from gateway.inference.request_context import Assigned, SessionSteps, assigned, in_experiment
from gateway.inference.routing_knobs import RoutingKnobFile, RoutingKnobs
from gateway.inference.served_catalogue import AUTO, ReferencePrices, ServedCatalogue
from inference_core.errors import InvalidRequestError
from inference_core.tokenization.tokenizer import Tokenizer
from tiers.catalog.catalog import Catalog
from tiers.catalog.consent import hidden_from
from tiers.catalog.pricing import predicted_costs
from tiers.local.text_threads import TextThreads
from tiers.tier import Tier, TierLoad

if TYPE_CHECKING:
    from gateway.inference.rules_and_chains import RuleResult, StandIn

log = logging.getLogger(__name__)

# Text with more bytes than this per allowed token is not tokenised to learn that it is not short.
LONG_TEXT_BYTES_PER_TOKEN = 16
_STARTING = TierLoad(healthy=False)


def edge_path(request: InferenceRequest, tiers: Mapping[int, Tier], knobs: RoutingKnobs) -> EdgePath | None:
    """Return the fast path for a request that names no tier, or None if it is routed normally (SPEC GW-16).

    The tier must run in process, because only then is its tokeniser available; it must be up, with a queue no longer
    than the service class `edge` allows. A request with tools, or with a quality target of its own or its key's, does
    not take the fast path.
    """
    if request.generation.max_tokens is None or request.generation.tooling is not None:
        return None
    new_tokens = request.generation.max_tokens * request.drawn * len(request.prompts or [None])
    if new_tokens > knobs.edge_max_new_tokens or request.wanted_quality is not None:
        return None
    tier = tiers.get(knobs.edge_tier)
    if tier is None or tier.tokenizer is None:
        return None
    load = tier.load()
    if not load.healthy or load.predicted_wait_seconds > SLO_CLASSES["edge"].ttft_seconds:
        return None
    prompt_tokens = _tokens(request, tier.tokenizer, knobs.edge_max_prompt_tokens)
    if prompt_tokens is None:
        return None
    return EdgePath(
        tier=knobs.edge_tier,
        prompt_tokens=prompt_tokens,
        max_prompt_tokens=knobs.edge_max_prompt_tokens,
        new_tokens=new_tokens,
        max_new_tokens=knobs.edge_max_new_tokens,
    )


def unclassified(routing_input: RoutingInput, tiers: int, target: float | None) -> VersionPrediction:
    """The verdict on a request of the fast path: the length heuristic's prediction, marked as its own."""
    prediction = heuristic_prediction(routing_input, tiers)
    prediction = msgspec.structs.replace(prediction, kind="edge", classifier_version="edge")
    return VersionPrediction(prediction, RoutingRule.of_classes(target))


def _tokens(request: InferenceRequest, tokenizer: Tokenizer, most: int) -> int | None:
    """Count the tokens of the caller's texts, without the chat template; None if there are more than `most`."""
    texts = [message.recorded_content() for message in request.generation.messages or ()]
    texts += [prompt for prompt in request.prompts or () if isinstance(prompt, str)]
    if sum(map(len, texts)) > most * LONG_TEXT_BYTES_PER_TOKEN:
        return None
    try:
        tokens = sum(len(tokenizer.encode(text)) for text in texts)
    except InvalidRequestError:
        return None
    return tokens if tokens <= most else None


class _Situation(msgspec.Struct, frozen=True):
    """What is known of a request before it is classified."""

    request: InferenceRequest
    routing_input: RoutingInput
    history: History
    served: ServedCatalogue
    """The catalogue as it serves the requested name, or the name of what stands in for it."""
    pinned: int | None
    loads: Mapping[int, TierLoad]
    excluded: Excluded
    exclusions: list[Exclusion]
    """What may not answer after the rules and after a failure of the fast path."""
    rule_result: "RuleResult | None"
    stand_in: "StandIn | None"
    """What answers in place of the entry that the request names."""


class RoutingService:
    """Decides which tier answers, of those that are `served` now; a reload replaces that value."""

    def __init__(
        self,
        catalog: Catalog,
        tiers: Mapping[int, Tier],
        classifier: Classifier,
        quality_target: QualitySetting | None,
        knobs: RoutingKnobFile | None = None,
        threads: TextThreads | None = None,
        conversations: Conversations | None = None,
        targets: Mapping[str, Tier] | None = None,
    ) -> None:
        """`threads`: where long prompts are counted; `targets`: the catalogue's, by name."""
        self.served = ServedCatalogue(catalog, tiers, targets or {})
        self.classifier = classifier
        self.quality_target = quality_target
        self.knobs = knobs or RoutingKnobFile()
        self.threads = threads or TextThreads()
        self.conversations = Conversations() if conversations is None else conversations
        self.references = ReferencePrices()
        self.answer_lengths = AnswerLengths()
        self._learning = SessionLearning()
        # What answers in place of routing where it does not pay: by key, and by None for all others.
        self.constants: Mapping[str | None, ConstantTier | None] = {}
        # Logged once per kind of failure, not once per request.
        self._classifier_failure = ""

    @property
    def active_target(self) -> float | None:
        """The quality target of requests that ask for none: the knob's, else the setting's; None is the version's."""
        wanted = self.knobs.active.quality_target
        wanted = self.quality_target if wanted is None else wanted
        return None if wanted is None else target_of(wanted)

    async def prepare(self, request: InferenceRequest, failed: Exclusion | None = None) -> None:
        """Do the parts of routing that take milliseconds while other requests are served, so that `route` never waits.

        `failed` as for `route`. Never raises; what fails here fails in `route` too, which has a fallback.
        """
        try:
            if failed is None and self.conversations.is_shared and self.knobs.active.conversations:
                await self.conversations.fetch(request, agents=self._follows(request))
            await self._count_in_doubt(request)
            if getattr(self.classifier, "is_quick", False):
                return
            assignment = self._experiment_arm(request)
            version = self.classifier.model_for(request.request_id, None if assignment is None else assignment.arm)
            # Asked first, because to look whether an object has a protocol's methods takes ten microseconds.
            if (
                getattr(version, "slow", False)
                and isinstance(version, EncodesAhead)
                and not self._edge(request, failed)
            ):
                await version.encode_ahead(routing_input_of(request))
        except Exception as error:
            log.debug("nothing was prepared: %s", error)

    async def is_too_long(self, request: InferenceRequest) -> bool:
        """Whether the prompt exceeds the context of every tier for it. Raises `ApiError` 404 for an unknown model."""
        served = self.served.seen_by(request.requested_model)
        pinned = served.pinned_tier(request.requested_model)
        await self._count_in_doubt(request)
        excluded = exclusions(request, pinned, served.tiers, served.catalog, _loads(served))
        shown = {
            k for k in served.tiers if pinned in (None, k) and hidden_from(served.spec(k), request.consent) is None
        }
        usable = shown - excluded.incapable.keys()
        is_too_long = bool(usable) and usable <= set(excluded.too_long)
        if not is_too_long or pinned is None:
            return is_too_long
        return self._stand_in(request, routing_input_of(request), pinned, excluded, served) is None

    async def _count_in_doubt(self, request: InferenceRequest) -> None:
        served = self.served.seen_by(request.requested_model)
        pinned = served.pinned_tier(request.requested_model)
        if is_in_doubt(request, pinned, served.tiers, served.catalog):
            work = partial(count_in_doubt, request, pinned, served.tiers, served.catalog)
            await self.threads.run(request.caller.tenant, work)

    def route(self, request: InferenceRequest, failed: Exclusion | None = None) -> Decision:
        """The decision of `routed`, of which nothing is remembered."""
        return self._routed(request, failed).decision

    async def ordinary_route(self, request: InferenceRequest, edge: Decision) -> Decision | None:
        """Return the ordinary decision after the fast path of `edge` failed; None if no other tier may answer."""
        failed = Exclusion(tier=edge.tier, reason="it failed on the fast path")
        await self.prepare(request, failed)
        try:
            return self.route(request, failed)
        except ApiError:
            return None

    def routed(self, request: InferenceRequest) -> Routed:
        """Choose a tier for a request that will be answered. Raises `ApiError`: 404 for an unknown model, 400 or 503 if
        no tier may answer."""
        routed = self._routed(request, None)
        self.references.observe(request.key_id or "", routed.app, routed.decision.inputs.costs[-1])
        return routed

    def _routed(self, request: InferenceRequest, failed: Exclusion | None) -> Routed:
        """Choose a tier, as `routed`. `failed`: that of the fast path, which the ordinary route replaces."""
        situation = self._situation(request, failed)
        routing_input, rule_result = situation.routing_input, situation.rule_result
        if (rule_result is None or rule_result.leaves_edge) and (edge := self._edge(request, failed)) is not None:
            verdict = unclassified(routing_input, self.served.strongest, self.active_target)
            inputs = self._policy_inputs(situation, verdict, edge)
            if may_answer(inputs, edge.tier):
                return Routed(decide(inputs), app=routing_input.app)
        assignment = self._experiment_arm(request)
        usual = None if rule_result is None else rule_result.quality
        verdict = self._verdict(request, routing_input, None if assignment is None else assignment.arm, usual)
        inputs = self._policy_inputs(situation, verdict, None)
        try:
            decision = decide(inputs if assignment is None else in_experiment(inputs, assignment))
            return Routed(decision, routing_input.app)
        except NoTierAllowedError as error:
            refusal = no_tier(error, request, inputs, situation.excluded, situation.served)
            raise explain_privacy(request, refusal) from None

    def _situation(self, request: InferenceRequest, failed: Exclusion | None) -> _Situation:
        """Return what is known of a request before it is classified. Raises `ApiError`."""
        served = self.served.seen_by(request.requested_model)
        pinned = served.pinned_tier(request.requested_model)
        if pinned is None and request.prompts and any(isinstance(prompt, list) for prompt in request.prompts):
            raise bad_request(
                "A prompt of token ids belongs to one model's vocabulary: name that model or a tier, not 'auto'.",
                "model",
            )
        self._check_allowed(request, pinned, served)
        history = self._history(request)
        routing_input = routing_input_of(request, history.tiers)
        loads = _loads(served)
        excluded = exclusions(request, pinned, served.tiers, served.catalog, loads)
        name, stand_in = request.requested_model, None
        if pinned is not None:
            stand_in = self._stand_in(request, routing_input, pinned, excluded, served)
        if stand_in is not None:
            name, served = stand_in.name, self.served.seen_by(stand_in.name)
            pinned, loads = served.pinned_tier(name), _loads(served)
            excluded = exclusions(request, pinned, served.tiers, served.catalog, loads)
        is_ruled = served.rules is not None or served is not self.served
        rule_result = self._ruled(request, name, routing_input, pinned, excluded) if is_ruled else None
        left_out = excluded.exclusions if rule_result is None else rule_result.exclusions
        if failed is not None:
            left_out = [*(exclusion for exclusion in left_out if exclusion.tier != failed.tier), failed]
        return _Situation(
            request, routing_input, history, served, pinned, loads, excluded, left_out, rule_result, stand_in
        )

    def _edge(self, request: InferenceRequest, failed: Exclusion | None) -> EdgePath | None:
        knobs = self.knobs.active
        if not knobs.edge_max_prompt_tokens or request.requested_model != AUTO or failed is not None:
            return None
        return edge_path(request, self.served.tiers, knobs)

    def _policy_inputs(self, situation: _Situation, verdict: VersionPrediction, edge: EdgePath | None) -> PolicyInputs:
        request, history, served = situation.request, situation.history, situation.served
        routing_input, client = situation.routing_input, request.client
        prompt_tokens, is_pinned = routing_input.prompt_tokens, situation.pinned is not None
        rule, knobs = verdict.rule, self.knobs.active
        costs = predicted_costs(
            served.catalog, prompt_tokens, request.generation.max_tokens, verdict.prediction.predicted_tokens
        )
        return PolicyInputs(
            prediction=verdict.prediction,
            costs=costs,
            quality_target=rule.quality_target,
            tau=rule.tau,
            objective=rule.objective,
            reference_usd=self.references.of(request.key_id or "", routing_input.app, costs[-1]),
            app=routing_input.app if request.consent.reuse else "",
            pinned_tier=situation.pinned,
            min_tier=request.options.min_tier,
            key_min_tier=request.caller.min_tier,
            max_cost_usd=request.max_cost_usd,
            exclusions=situation.exclusions,
            predicted_waits=[load.predicted_wait_seconds for load in situation.loads.values()],
            most_wait_seconds=self._most_wait_seconds(request),
            canary=verdict.on_trial,
            observe_tier=None if is_pinned else self._observed_tier(),
            edge=edge,
            constant=None if is_pinned or not self.constants else self._constant(request),
            cheapest=None if client is None else cheapest_because(client, knobs.agents_housekeeping),
            client=None if client is None else client.client,
            purpose=None if client is None else client.kind,
            session=self._session_step(situation) if self._follows(request) else None,
            private=None if request.private is None else str(request.private),
            rules=None if situation.rule_result is None else situation.rule_result.by,
            fell_over=None if situation.stand_in is None else situation.stand_in.why,
            **(circumstances(history, self.served.catalog, prompt_tokens) if history.tiers else {}),
        )

    def _session_step(self, situation: _Situation) -> SessionStep:
        steps = SessionSteps(self.conversations, self.served, self.knobs.active, self._learning)
        prompt_tokens = situation.routing_input.prompt_tokens
        return steps.step_of(situation.request, situation.history, situation.pinned, prompt_tokens)

    def _stand_in(
        self,
        request: InferenceRequest,
        routing_input: RoutingInput,
        pinned: int,
        excluded: Excluded,
        served: ServedCatalogue,
    ) -> "StandIn | None":
        """What answers in place of the entry that the request names, which cannot take it now; None if nothing does."""
        if not excluded.exclusions or not served.spec(pinned).fallback:
            return None
        from gateway.inference.rules_and_chains import stand_in_of

        return stand_in_of(request, routing_input, served.spec(pinned), excluded, self.served)

    def _ruled(
        self, request: InferenceRequest, name: str, routing_input: RoutingInput, pinned: int | None, excluded: Excluded
    ) -> "RuleResult | None":
        """What the catalogue's rules leave of a request for `name`, and the target of that name; None without both."""
        from gateway.inference.rules_and_chains import apply_rules, to_target

        rule_result = None
        if (rules := self.served.rules) is not None:
            observed = pinned is None and self._observed_tier() is not None
            rule_result = apply_rules(rules, request, routing_input, self.served, pinned, excluded, observed=observed)
        named = self.served.named_target(name)
        return rule_result if named is None or pinned is None else to_target(rule_result, pinned, named, excluded)

    def _most_wait_seconds(self, request: InferenceRequest) -> float | None:
        """How long a queue the request accepts before it costs more; a deadline says that itself, and a batch waits."""
        seconds = self.knobs.active.queue_seconds
        waits = (
            request.options.deadline_seconds is not None or request.generation.priority >= SLO_CLASSES["batch"].priority
        )
        return None if waits or not seconds else seconds

    def _experiment_arm(self, request: InferenceRequest) -> Assigned | None:
        """Return the request's place in the experiment under way, if it has one."""
        split = self.classifier.split()
        return None if split is None else assigned(split, request)

    def above(self, request: InferenceRequest, decision: Decision, number: int) -> list[Tier]:
        """The tiers above `number` that this decision's constraints allow and that may answer as the catalogue is now,
        ascending; a pinned request has none."""
        barred, served = barred_tiers(decision.inputs), self.served
        tiers = [self._answering(request, k) for k in range(number + 1, served.strongest + 1) if k not in barred]
        return [tier for tier in tiers if tier is not None]

    def stand_in(
        self, request: InferenceRequest, decision: Decision, tried: Iterable[int], takes: Callable[[Tier], bool]
    ) -> Tier | None:
        """The tier that the same decision takes without those that were `tried`: by the same objective, constraints and
        holds, of those that may answer as the catalogue is now and that `takes` it. None if there is none."""
        inputs = decision.inputs
        away = [Exclusion(tier=k, reason="it was tried") for k in tried if k <= len(inputs.costs)]
        while True:
            try:
                number = decide(msgspec.structs.replace(inputs, exclusions=[*inputs.exclusions, *away])).tier
            except NoTierAllowedError:
                return None
            tier = self._answering(request, number)
            if tier is not None and takes(tier):
                return tier
            away.append(Exclusion(tier=number, reason="it cannot take the request now"))

    def _answering(self, request: InferenceRequest, number: int) -> Tier | None:
        """What answers as a tier now; None if it is gone or down, or may not see the request."""
        tier = self.served.tiers.get(number)
        if tier is None or hidden_from(self.served.spec(number), request.consent) is not None:
            return None
        return tier.active_tier() if tier.load().healthy else None

    def _observed_tier(self) -> int | None:
        """The tier that answers everything while routing is only observed; None in the mode `route`."""
        knobs = self.knobs.active
        if knobs.mode == "route":
            return None
        return min(knobs.observe_tier or self.served.strongest, self.served.strongest)

    def _constant(self, request: InferenceRequest) -> ConstantTier | None:
        """The constant of the request's key, else that of the catalogue, where the knob lets it act."""
        knobs = self.knobs.active
        if knobs.constant != "act" or knobs.mode != "route":
            return None
        return self.constants.get(request.key_id, self.constants.get(None))

    def remember(self, request: InferenceRequest, tier: int, answered: Answered | None = None) -> None:
        """Note that `tier` answered `request`, or would have, for the conversation's next turn. `answered`: of a step
        of an agent's session, how it was answered."""
        knobs, client = self.knobs.active, request.client
        if not knobs.conversations or (client is not None and is_housekeeping(client)):
            return
        became = None if answered is None else partial(self._became, answered, request)
        self.conversations.remember(request, tier, knobs.conversation_seconds, became)

    def _became(self, answered: Answered, request: InferenceRequest, before: Session | None) -> Session:
        """What a session is after one of its steps was answered, of which is learned."""
        self._learning.observe(answered.step, before, request.caller.tenant, request.key_id or "")
        return after(answered, before)

    def _follows(self, request: InferenceRequest) -> bool:
        """Whether the request is a step of a session that is followed."""
        if request.client is None and request.generation.tooling is None:
            return False
        knobs = self.knobs.active
        return knobs.agents and knobs.conversations and is_followed(request)

    def _verdict(
        self, request: InferenceRequest, routing_input: RoutingInput, arm: ArmName | None, usual: float | None
    ) -> VersionPrediction:
        """Return the prediction and rule of one version, that of `arm` if the request is in one, or the length
        heuristic's if that fails (SPEC RT-13). `usual`: the quality target of requests that ask for none, or None."""
        usual = self.active_target if usual is None else usual
        target = usual if request.wanted_quality is None else request.wanted_quality
        try:
            model = self.classifier.model_for(request.request_id, arm)
            prediction = model.predict(drawn_for_others(routing_input, request.request_id))
            return VersionPrediction(prediction, RoutingRule.of_classes(target), model.on_trial)
        except Exception as error:
            if str(error) != self._classifier_failure:
                self._classifier_failure = str(error)
                # Our own errors say what is missing; any other may quote the prompt.
                said = error if isinstance(error, ClassifierError) else type(error).__name__
                log.error("the classifier failed, the length heuristic routes: %s", said, exc_info=error)
            return VersionPrediction(
                heuristic_prediction(routing_input, self.served.strongest), RoutingRule.of_heuristic(target)
            )

    def _history(self, request: InferenceRequest) -> History:
        client = request.client
        if not self.knobs.active.conversations or (client is not None and is_housekeeping(client)):
            return History()
        return self.conversations.history(request, agents=self._follows(request))

    def _check_allowed(self, request: InferenceRequest, pinned: int | None, served: ServedCatalogue) -> None:
        """Raises `ApiError` 403 where the key may not use what the request asks for."""
        least = max(request.options.min_tier or 1, request.caller.min_tier or 1)
        consent, hidden = request.consent, None
        for number in range(least, served.strongest + 1) if pinned is None else [pinned]:
            spec = served.spec(number)
            reason = hidden_from(spec, consent)
            # What both consent to is never more than what the key does.
            if reason is None and number >= (request.caller.min_tier or 1):
                return
            if request.caller.may_use(spec):
                hidden = reason
        raise not_allowed(request, hidden, least if pinned is None else 1)


def _loads(served: ServedCatalogue) -> dict[int, TierLoad]:
    return {k: tier.active_tier().load() if tier.is_started else _STARTING for k, tier in served.tiers.items()}
