"""The edge-first fast path: who takes it, up to which token, and what stands in for it when it fails."""

from functools import cache
from typing import Any

import pytest

from classifier.features.routing_input import RoutingInput
from classifier.policy.decide import decide
from classifier.policy.experiment_split import Arm, Split
from gateway.base.inference_request import Caller, InferenceRequest
from gateway.inference.answer import Answer
from inference_core.loaders.hub_model import resolve_model_path
from inference_core.tokenization.load_tokenizer import load_tokenizer
from inference_core.tokenization.tokenizer import Tokenizer
from tests.gateway.chats import chat
from tests.gateway.inference.scripted_service import CATALOG, ScriptedService
from tests.support.scripted_classifier import ScriptedClassifier
from tiers.catalog.consent import Consent
from tiers.conversation import Tool, Tooling, Turn
from tiers.errors import TierError, TierUnavailableError
from tiers.tier import TierLoad

TWENTY_NINE = " ".join(["the"] * 29)
THIRTY = " ".join(["the"] * 30)


@cache
def vocabulary() -> Tokenizer:
    return load_tokenizer(resolve_model_path(CATALOG.model_paths[CATALOG.tier(1).model_name]))


class EdgeService(ScriptedService):
    """One whose fast path takes prompts of up to 29 tokens to tier 1, while the classifier wants tier 3."""

    def __init__(self, **knobs: object) -> None:
        bounds = {"edge_max_prompt_tokens": 29, "edge_max_new_tokens": 16}
        super().__init__(cached=True, probed=True, **bounds | knobs)
        self.tiers[0].vocabulary = vocabulary()
        self.classifier.p_ok = (0.1, 0.1, 1.0, 1.0)

    async def answer(self, *, stream: bool = False, **fields: Any) -> Answer:
        answer = await super().answer(stream=stream, **{"text": TWENTY_NINE, "max_tokens": 16, "cache": "off"} | fields)
        if stream:
            await answer.whole()
        return answer


def short(text: str = TWENTY_NINE, **fields: Any) -> InferenceRequest:
    return chat(text, **{"max_tokens": 16, "cache": "off"} | fields)


def took_edge(edge: EdgeService, *args: Any, **fields: Any) -> bool:
    decision = edge.routing.route(short(*args, **fields))
    assert decide(decision.inputs) == decision
    assert decision.by_edge == decision.reason.startswith("fast path: ")
    return decision.by_edge


def test_29_tokens_of_the_tiers_own_take_the_fast_path_and_30_do_not() -> None:
    edge = EdgeService()
    assert [len(vocabulary().encode(text)) for text in (TWENTY_NINE, THIRTY)] == [29, 30]
    assert took_edge(edge, TWENTY_NINE)
    assert not edge.classifier.seen, "the classifier was asked"
    assert not took_edge(edge, THIRTY)
    assert edge.routing.route(short(THIRTY)).tier == 3


def test_the_decision_has_the_token_count_and_the_active_target() -> None:
    decision = EdgeService().routing.route(short(TWENTY_NINE))
    assert decision.reason == (
        "fast path: the prompt has 29 tokens (limit 29) and the answer at most 16 (limit 16), so tier 1 answers "
        "without the classifier"
    )
    prediction = decision.inputs.prediction
    assert (prediction.kind, prediction.classifier_version, decision.inputs.quality_target) == ("edge", "edge", 0.7)


def test_it_is_off_by_default() -> None:
    edge = EdgeService(edge_max_prompt_tokens=None)
    assert not took_edge(edge, "hi")


@pytest.mark.parametrize(
    "fields",
    [
        {"max_tokens": 17},
        {"max_tokens": None},
        {"max_tokens": 9, "n": 2},
        {"quality_target": 0.5},
        {"min_tier": 2},
        {"caller": Caller(consent=Consent(tiers=frozenset({2, 3, 4})))},
        {"tooling": Tooling(tools=[Tool(name="f", description="", parameters={})])},
        {"requested_model": "tier-2"},
    ],
    ids=lambda fields: " ".join(map(str, fields)),
)
def test_a_request_that_wants_otherwise_is_routed_ordinarily(fields: dict[str, Any]) -> None:
    assert not took_edge(EdgeService(), **fields)


def test_the_callers_maximum_cost_holds() -> None:
    edge = EdgeService(edge_tier=2)
    edge.tiers[1].vocabulary = vocabulary()
    first, second, *_ = edge.routing.route(short()).inputs.costs
    assert edge.routing.route(short(max_cost_usd=second)).by_edge
    decision = edge.routing.route(short(max_cost_usd=(first + second) / 2))
    assert (decision.tier, decision.by_edge) == (1, False)


def test_all_turns_count_and_raw_prompts_too() -> None:
    edge = EdgeService()
    turns = [Turn.of("system", TWENTY_NINE), Turn.of("user", "hi")]
    assert not took_edge(edge, messages=turns)
    assert took_edge(edge, messages=None, prompts=[TWENTY_NINE])
    assert not took_edge(edge, messages=None, prompts=[THIRTY])


@pytest.mark.parametrize("health", [TierLoad(healthy=False), TierLoad(predicted_wait_seconds=0.021)])
def test_a_tier_that_is_down_or_has_a_queue_is_no_fast_path(health: TierLoad) -> None:
    edge = EdgeService()
    edge.tiers[0].health = TierLoad(predicted_wait_seconds=0.019)
    assert took_edge(edge)
    edge.tiers[0].health = health
    assert not took_edge(edge)


def test_a_tier_whose_tokens_are_not_known_here_is_none() -> None:
    edge = EdgeService()
    edge.tiers[0].vocabulary = None
    assert not took_edge(edge)


def test_a_conversation_on_a_dearer_tier_stays_there_while_that_is_cheaper() -> None:
    edge = EdgeService()
    named = {"conversation": "c-1"}
    edge.routing.remember(short(**named), 1)
    assert took_edge(edge, **named)
    calls = [Turn.of("user", "a"), Turn.of("assistant", "b"),
             Turn.of("tool", "c", call_id="t")]  # fmt: skip
    edge.routing.remember(short(**named), 3)
    decision = edge.routing.route(short(messages=calls, **named))
    assert (decision.tier, decision.by_edge) == (3, False)


def test_routing_that_is_only_watched_writes_the_fast_path_down() -> None:
    decision = EdgeService(mode="observe").routing.route(short())
    assert (decision.tier, decision.would_be, decision.by_edge) == (4, 1, False)
    assert "fast path: " in decision.reason


def test_no_experiment_counts_a_request_that_no_arm_decided() -> None:
    edge = EdgeService()
    edge.classifier.experiment = Split(experiment_id="e", share=1.0, a=Arm(tier=3), b=Arm(tier=2))
    assert edge.routing.route(short()).inputs.experiment_id is None
    assert edge.routing.route(short(THIRTY)).inputs.experiment_id == "e"


@pytest.mark.asyncio
async def test_the_evidence_of_a_fast_answer_does_not_escalate_it() -> None:
    edge = EdgeService()
    edge.tiers[0].sureness = (-4.0,)
    answer = await edge.answer(stream=False)
    assert (answer.tier.number, [attempt.status for attempt in answer.attempts]) == (1, ["ok"])


@pytest.mark.asyncio
@pytest.mark.parametrize("cached", ["off", "use"])
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("error", [TierError("broke"), TierUnavailableError("full"), RuntimeError("a bug")])
async def test_a_failure_before_the_first_token_falls_back_to_the_ordinary_route(
    error: Exception, stream: bool, cached: str
) -> None:
    edge = EdgeService()
    edge.tiers[0].fail_at, edge.tiers[0].error = 0, error
    answer = await edge.answer(stream=stream, cache=cached)
    record = edge.records[0]
    assert [(attempt.tier, attempt.status) for attempt in record.attempts] == [(1, "error"), (3, "ok")]
    assert (record.status, record.tier, record.decision.tier) == ("ok", 3, 3)
    assert record.decision.inputs.prediction.classifier_version == "scripted"
    assert "not tier 1: it failed on the fast path" in record.decision.reason
    assert decide(record.decision.inputs) == record.decision
    assert answer.p_ok == 1.0
    assert [turn.turn for turn in edge.classifier.seen] == [TWENTY_NINE]


@pytest.mark.asyncio
async def test_a_started_stream_is_not_restarted() -> None:
    edge = EdgeService()
    edge.tiers[0].fail_at = 1
    with pytest.raises(TierError, match="scripted failure"):
        await edge.answer(stream=True)
    assert not edge.tiers[2].requests


@pytest.mark.asyncio
async def test_without_another_tier_the_caller_sees_the_failure() -> None:
    edge = EdgeService()
    edge.tiers[0].fail_at = 0
    with pytest.raises(TierError, match="scripted failure"):
        await edge.answer(caller=Caller(consent=Consent(tiers=frozenset({1}))))
    assert edge.records[0].decision.by_edge


class SlowClassifier(ScriptedClassifier):
    """One whose encoder takes long."""

    slow = True

    def __init__(self) -> None:
        super().__init__()
        self.encoded: list[RoutingInput] = []

    async def encode_ahead(self, given: RoutingInput) -> None:
        self.encoded.append(given)


@pytest.mark.asyncio
async def test_a_slow_encoder_is_spared_until_the_fast_path_fails() -> None:
    edge = EdgeService()
    slow = edge.routing.classifier = SlowClassifier()
    slow.p_ok = edge.classifier.p_ok
    await edge.answer()
    assert not slow.encoded
    edge.tiers[0].fail_at = 0
    await edge.answer()
    assert [given.turn for given in slow.encoded] == [TWENTY_NINE]
