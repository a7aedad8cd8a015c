"""What makes two requests the same, where that cannot be seen from outside."""

from typing import Any

import msgspec
import pytest

from classifier.decision import PolicyInputs, Prediction, RuledBy
from classifier.policy.decide import decide
from gateway.base.inference_request import KEYLESS, InferenceRequest
from gateway.inference.response_cache import CatalogueDigest, cache_key
from inference_core.protocol import SamplingParams
from tests.gateway.chats import chat
from tiers.catalog.consent import Consent
from tiers.catalog.load import load_catalog
from tiers.catalog.tier_spec import TierSpec
from tiers.conversation import Tooling, Turn
from tiers.dialects.rules import SERVICE_FIELDS


def test_a_tier_or_weights_that_were_replaced_change_the_digest_of_the_catalogue() -> None:
    catalog, digest = load_catalog("laptop"), CatalogueDigest()
    weights = ["a", "b", "b", "b"]
    first = digest.of(catalog.tiers, catalog.fingerprint, weights)
    assert digest.of(catalog.tiers, catalog.fingerprint, list(weights)) == first
    assert digest.of(catalog.tiers, catalog.fingerprint, ["c", *weights[1:]]) != first
    assert digest.of(catalog.tiers, catalog.fingerprint, weights) == first
    sampling = msgspec.structs.replace(catalog.tiers[1].sampling, top_k=5)
    catalog.tiers[1] = msgspec.structs.replace(catalog.tiers[1], sampling=sampling)
    second = digest.of(catalog.tiers, catalog.fingerprint, weights)
    assert second != first
    assert CatalogueDigest().of(load_catalog("laptop").tiers, catalog.fingerprint, weights) == first


PREDICTION = Prediction(p_ok=[0.5, 0.8, 0.9, 1.0], kind="measured", novelty=0.1, classifier_version="v7")
INPUTS = PolicyInputs(prediction=PREDICTION, costs=[0.001, 0.0025, 0.01, 0.03], quality_target=0.9, tau=0.75)
SPEC = load_catalog("laptop").tier(2)
OTHER = Turn.of("user", "Say goodbye.")


def key(
    request: InferenceRequest | None = None, catalogue: bytes = b"c", spec: TierSpec = SPEC, **inputs: Any
) -> bytes:
    decision = decide(msgspec.structs.replace(INPUTS, **inputs))
    return cache_key(chat() if request is None else request, decision, spec, catalogue)


def of_key(**fields: Any) -> InferenceRequest:
    return chat(caller=msgspec.structs.replace(KEYLESS, **fields))


@pytest.mark.parametrize(
    "request_",
    [
        of_key(team="t"),
        chat(api="completion"),
        chat(requested_model="tier-2"),
        chat(adapter="a"),
        chat(sampling=SamplingParams(temperature=0.5)),
        chat(messages=[OTHER]),
        chat(messages=[OTHER, OTHER]),
        chat(messages=None),
        chat(prompts=["Say hello."]),
        chat(max_tokens=5),
        chat(stop=("x",)),
        chat(n=2),
        chat(best_of=2),
        chat(echo=True),
        chat(include_stop=True),
        chat(reasoning_effort="high"),
        chat(reasoning_budget=9),
        chat(template_variables={"a": 1}),
        chat(response_format={"type": "json_object"}),
        chat(tooling=Tooling(tools=())),
        chat(passed={"verbosity": "low"}),
        chat(quality_target=0.5),
        chat(min_tier=2),
        chat(min_tier=3),
        chat(max_cost_usd=1.0),
        chat(own_consent=Consent(tiers=frozenset([1, 2]))),
        chat(own_consent=Consent(local=True)),
    ],
)
def test_all_that_an_answer_depends_on_makes_another_key(request_: InferenceRequest) -> None:
    assert key(request_) != key()


def test_two_keys_without_a_team_share_no_entry_and_no_prefix() -> None:
    """Though they learn from each other's labels."""
    one, other = of_key(key_id="one"), of_key(key_id="other")
    assert key(one) != key(other)
    salts = {made.salt for request in (one, other) for made in request.generations(SPEC)}
    assert salts == {"one", "other"}


def test_parallel_calls_and_the_choice_of_tools_make_another_key_with_tools_and_without() -> None:
    tools = [Tooling(tools=()), Tooling(tools=(), parallel=False), Tooling(tools=(), choice="required")]
    keys = {key(chat(tooling=one)) for one in tools}
    keys |= {key(chat(given=("parallel_tool_calls",))), key(chat(given=("tool_choice",))), key()}
    assert len(keys) == 6


def test_the_catalogue_the_tier_the_version_and_the_rules_make_another_key() -> None:
    keys = {
        key(),
        key(catalogue=b"d"),
        key(pinned_tier=3),
        key(prediction=msgspec.structs.replace(PREDICTION, classifier_version="v8")),
        key(rules=RuledBy(names=["r"])),
        key(rules=RuledBy(names=["r", "s"])),
    }
    assert len(keys) == 6


def test_what_only_words_an_answer_or_tells_of_the_request_makes_no_other_key() -> None:
    plain = key()
    assert len(plain) == 32
    assert key(chat(stream=True, metadata={"a": "b"}, user="u", request_id="chatcmpl-2", priority=0)) == plain
    assert key(chat(passed={"store": True})) == plain
    caches = ("prompt_cache_key", "prompt_cache_retention", "prompt_cache_options")
    left_out = ("user", "safety_identifier", "metadata", "service_tier", *caches)
    assert key(chat(passed=dict.fromkeys(left_out, "x"))) == plain
    assert set(SERVICE_FIELDS) == {*left_out, "store", "verbosity"}
    assert key(rules=None, private="a mark") == plain


def test_a_minimum_of_the_key_and_of_the_request_are_one_and_the_higher_holds() -> None:
    floors = [(2, None), (None, 2), (2, 2), (1, 2), (2, 1)]
    keys = {
        key(chat(min_tier=own, caller=msgspec.structs.replace(KEYLESS, min_tier=keys_own))) for own, keys_own in floors
    }
    assert len(keys) == 1
    assert keys.isdisjoint([key(), key(chat(min_tier=1)), key(chat(min_tier=3))])


def test_a_target_of_the_key_counts_where_the_request_has_none_and_the_order_of_tiers_never() -> None:
    assert key(of_key(quality_target=0.5)) == key(chat(quality_target=0.5))
    assert key(chat(own_consent=Consent(tiers=frozenset([2, 1, 9])))) == key(
        chat(own_consent=Consent(tiers=frozenset([9, 2, 1])))
    )


def test_what_a_request_leaves_to_the_tier_is_the_tiers_own_value() -> None:
    warm = msgspec.structs.replace(SPEC, sampling=msgspec.structs.replace(SPEC.sampling, temperature=0.25))
    left, given = chat(unset=("temperature",)), chat(sampling=SamplingParams(temperature=0.25))
    assert key(left, spec=warm) == key(given, spec=warm) != key(chat(), spec=warm)
    open_ = msgspec.structs.replace(SPEC, sampling=msgspec.structs.replace(SPEC.sampling, temperature=None))
    assert key(left, spec=open_) == key(chat(), spec=open_), "the tier has none of its own"


def test_a_catalogue_of_fewer_tiers_or_other_models_has_another_digest() -> None:
    catalog, digest = load_catalog("laptop"), CatalogueDigest()
    weights = ["a", "b", "b", "b"]
    first = digest.of(catalog.tiers, catalog.fingerprint, weights)
    assert len(first) == 16
    assert digest.of(catalog.tiers[:3], catalog.fingerprint, weights) != first
    assert CatalogueDigest().of(catalog.tiers, "another", weights) != first


def test_a_catalogue_that_is_replaced_as_a_whole_has_another_digest() -> None:
    catalog, digest = load_catalog("laptop"), CatalogueDigest()
    weights = ["a", "b", "b", "b"]
    first = digest.of(catalog.tiers, catalog.fingerprint, weights)
    changed = [
        msgspec.structs.replace(tier, sampling=msgspec.structs.replace(tier.sampling, top_k=7))
        for tier in catalog.tiers
    ]
    assert digest.of(changed, catalog.fingerprint, weights) != first
