"""Which tiers may see a request: the label of each, and what is asked for."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.tiers.tier_world import remote_spec
from tiers.catalog.consent import ALL, ANSWER_ALONE, NOT_ALLOWED, NOT_LOCAL, Consent, Use, hidden_from
from tiers.catalog.load import load_catalog
from tiers.engines import EngineSpec

CONSENTS = st.builds(
    Consent,
    tiers=st.none() | st.frozensets(st.integers(1, 4)),
    local=st.booleans(),
    reuse=st.booleans(),
)


@pytest.mark.parametrize(
    ("consent", "use", "why"),
    [
        (ALL, "answer", None),
        (ALL, "reuse", None),
        (Consent(tiers=frozenset({1})), "answer", None),
        (Consent(tiers=frozenset({2})), "answer", NOT_ALLOWED),
        (Consent(tiers=frozenset()), "reuse", NOT_ALLOWED),
        (Consent(local=True), "answer", NOT_LOCAL),
        (Consent(reuse=False), "answer", None),
        (Consent(reuse=False), "reuse", ANSWER_ALONE),
    ],
)
def test_a_server_elsewhere_sees_what_the_consent_allows(consent: Consent, use: Use, why: str | None) -> None:
    spec = msgspec.structs.replace(remote_spec("http://127.0.0.1:9/v1"), number=1)
    assert hidden_from(spec, consent, use) == why


def test_a_tier_is_local_where_its_model_runs_here_or_where_the_catalogue_says_so() -> None:
    assert all(spec.is_local for spec in load_catalog("laptop").tiers)
    spec = remote_spec("http://127.0.0.1:9/v1")
    assert not spec.is_local, "an address says nothing of what is behind it"
    assert msgspec.structs.replace(spec, local=True).is_local
    assert remote_spec(engine=EngineSpec(kind="llama-server", model="model.gguf")).is_local


@given(CONSENTS)
def test_what_is_for_all_is_hidden_from_no_tier(consent: Consent) -> None:
    elsewhere = msgspec.structs.replace(remote_spec("http://127.0.0.1:9/v1"), number=5)
    hidden = [hidden_from(spec, consent) for spec in [*load_catalog("laptop").tiers, elsewhere]]
    assert consent.is_for_all == (not any(hidden))


@given(CONSENTS, CONSENTS, st.sampled_from(["answer", "reuse"]))
def test_what_two_consent_to_is_what_each_of_them_consents_to(consent: Consent, other: Consent, use: Use) -> None:
    for spec in load_catalog("laptop").tiers[:2]:
        hidden = hidden_from(spec, consent, use) or hidden_from(spec, other, use)
        assert (hidden_from(spec, consent.narrowed(other), use) is None) == (hidden is None)
