"""What is held back: cheap tiers from novel prompts, and a conversation from tiers that would have to read it again."""

from typing import Any

import msgspec
import pytest
from classifier.fallback import fallback_of
from hypothesis import given, settings
from hypothesis import strategies as st

from classifier.artefact import default_artefact, load_artefact
from classifier.curve import quality_to_lambda, quality_to_tau
from classifier.decision import Decision, Exclusion, PolicyInputs, Prediction
from classifier.errors import NoTierAllowedError, PolicyInputsError
from classifier.outcome_model import OutcomeModel
from classifier.policy import barred_tiers, decide
from tests.examples import examples

COSTS = [0.001, 0.0025, 0.01, 0.03]


@pytest.fixture(scope="module")
def shipped() -> OutcomeModel:
    return load_artefact(default_artefact())


def example(*, novelty: float = 0.1, p_ok: tuple[float, ...] = (0.99, 0.99, 0.99, 1.0), **changes: Any) -> PolicyInputs:
    base = PolicyInputs(
        prediction=Prediction(p_ok=list(p_ok), kind="measured", novelty=novelty, classifier_version="t"),
        costs=COSTS,
        rule="lambda",
        quality_target=0.9,
        lambda_=0.1,
        tau=0.75,
        novelty_threshold=0.98,
        safe_tier=3,
    )
    return msgspec.structs.replace(base, **changes)


def test_a_prompt_far_from_experience_gets_the_safe_tier_and_the_reason_says_why() -> None:
    known, novel = decide(example(novelty=0.97)), decide(example(novelty=0.98))
    assert (known.tier, novel.tier) == (1, 3)
    assert "not tier 1, 2: novelty 0.980 >= 0.980, far from verified experience: tier 3 at least" in novel.reason
    assert novel.scores[:2] == [None, None]


def test_a_novel_prompt_may_still_go_above_the_safe_tier() -> None:
    assert decide(example(novelty=1.0, p_ok=(0.1, 0.1, 0.1, 1.0))).tier == 4


def test_where_the_safe_tier_is_not_allowed_the_strongest_allowed_one_is_safe_enough() -> None:
    down = [Exclusion(tier=3, reason="down"), Exclusion(tier=4, reason="down")]
    assert decide(example(novelty=1.0, exclusions=down)).tier == 2
    assert decide(example(novelty=1.0, max_cost_usd=0.001)).tier == 1


def test_a_pinned_request_is_pinned_however_novel_it_is() -> None:
    assert decide(example(novelty=1.0, pinned_tier=1)).tier == 1


def test_the_heuristic_knows_no_novelty() -> None:
    prediction = Prediction(p_ok=[0.99, 0.99, 0.99, 1.0], kind="heuristic", novelty=1.0, classifier_version="t")
    assert decide(example(prediction=prediction)).tier == 1


def test_a_tool_loop_keeps_its_tier_up_and_down() -> None:
    for previous in (1, 2, 3, 4):
        for p_ok in ((0.99, 0.99, 0.99, 1.0), (0.01, 0.01, 0.01, 1.0)):
            decision = decide(example(previous_tier=previous, in_tool_loop=True, p_ok=p_ok))
            assert decision.tier == previous
            assert f"the tool loop stays on tier {previous}" in decision.reason


def test_a_tool_loop_whose_tier_is_down_goes_on_elsewhere() -> None:
    down = [Exclusion(tier=2, reason="the tier is down")]
    assert decide(example(previous_tier=2, in_tool_loop=True, exclusions=down)).tier == 1


def test_what_is_held_back_may_still_take_over_when_the_tier_fails() -> None:
    assert barred_tiers(example(previous_tier=2, in_tool_loop=True)) == {}


def test_a_conversation_moves_up_freely() -> None:
    assert decide(example(previous_tier=1, reuse_usd=[0.0009, 0, 0, 0], p_ok=(0.1, 0.2, 0.3, 1.0))).tier == 4


def test_a_conversation_moves_down_only_when_that_saves_more_than_reading_it_again_costs() -> None:
    """Going on at tier 3 costs what is left of its price; going down costs all of the cheaper tier's."""
    stays = decide(example(previous_tier=3, reuse_usd=[0, 0, 0.0095, 0]))
    assert stays.tier == 3
    assert "the conversation is on tier 3, where it costs $0.000500 to go on, and $0.001000 to read" in stays.reason
    assert decide(example(previous_tier=3, reuse_usd=[0, 0, 0.0080, 0])).tier == 1
    assert decide(example(previous_tier=3, reuse_usd=[0.0009, 0, 0.0095, 0])).tier == 1, "it shares the cache"


def test_a_conversation_whose_tier_is_not_allowed_has_nothing_to_lose() -> None:
    down = [Exclusion(tier=3, reason="down")]
    assert decide(example(previous_tier=3, reuse_usd=[0, 0, 0.0095, 0], exclusions=down)).tier == 1


@pytest.mark.parametrize(
    ("changes", "named"),
    [({"safe_tier": 5}, "safe_tier"), ({"previous_tier": 0}, "previous_tier"), ({"reuse_usd": [1.0]}, "reuse_usd")],
)
def test_circumstances_without_meaning_are_refused_by_name(changes: dict[str, Any], named: str) -> None:
    with pytest.raises(PolicyInputsError, match=named):
        decide(example(**changes))


def test_a_decision_recorded_before_novelty_and_conversations_still_replays() -> None:
    old = decide(msgspec.structs.replace(example(), novelty_threshold=None, safe_tier=None))
    stored = msgspec.json.decode(msgspec.json.encode(old))
    for name in ("novelty_threshold", "safe_tier", "previous_tier", "reuse_usd", "in_tool_loop", "canary"):
        del stored["inputs"][name]
    for name in ("p_correct", "predicted_tokens"):
        del stored["inputs"]["prediction"][name]
    read = msgspec.convert(stored, Decision)
    assert decide(read.inputs) == read == old


@st.composite
def circumstances(draw: st.DrawFn) -> PolicyInputs:
    steps = draw(st.lists(st.floats(1e-6, 10), min_size=4, max_size=4))
    costs = [sum(steps[: k + 1]) for k in range(4)]
    p_ok = [*draw(st.lists(st.floats(0, 1), min_size=3, max_size=3)), 1.0]
    return PolicyInputs(
        prediction=Prediction(p_ok=p_ok, kind="prior", novelty=draw(st.floats(0, 1)), classifier_version="t"),
        costs=costs,
        rule="lambda",
        quality_target=0.9,
        lambda_=0.0,
        tau=1.0,
        min_tier=draw(st.none() | st.integers(1, 4)),
        max_cost_usd=draw(st.none() | st.floats(0, 40)),
        exclusions=[Exclusion(tier=t, reason="down") for t in draw(st.lists(st.integers(1, 4), unique=True))],
        novelty_threshold=draw(st.none() | st.floats(0, 1)),
        safe_tier=draw(st.none() | st.integers(1, 4)),
        previous_tier=draw(st.none() | st.integers(1, 4)),
        in_tool_loop=draw(st.booleans()),
        reuse_usd=draw(st.just([]) | st.lists(st.floats(0, 20), min_size=4, max_size=4)),
    )


@settings(max_examples=examples(300), deadline=None)
@given(circumstances(), st.lists(st.floats(0, 1), min_size=2, max_size=5), st.sampled_from(["lambda", "tau"]))
def test_raising_the_target_never_lowers_a_tier_by_the_shipped_curves(
    shipped: OutcomeModel, inputs: PolicyInputs, targets: list[float], rule: str
) -> None:
    chosen = []
    for target in sorted(targets):
        parameters = {"lambda_": quality_to_lambda(shipped, target), "tau": quality_to_tau(shipped, target)}
        try:
            chosen.append(decide(msgspec.structs.replace(inputs, rule=rule, **parameters)).tier)
        except NoTierAllowedError:
            chosen.append(0)
    assert chosen == sorted(chosen)


def test_an_artefact_that_does_not_say_falls_back_to_the_strongest_tier_for_the_most_novel_prompts(
    shipped: OutcomeModel,
) -> None:
    manifest = msgspec.structs.replace(shipped.manifest, fallback=None)
    assert (fallback_of(manifest).threshold, fallback_of(manifest).tier) == (0.98, 4)
