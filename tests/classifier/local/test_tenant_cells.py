"""One tenant's labels, whatever and however many, move what another tenant gets by no more than the stated bound."""

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from classifier.complexity.classes import Complexity, adequacies
from classifier.local.cells import LABELS_BOUND, MOST_WEIGHT, N0_CATALOGUE, TENANT_BOUND, Labels
from classifier.local.estimator import LocalEstimator, learned_table

Float = npt.NDArray[np.float32]
TABLE = adequacies(tuple(Complexity))[:, :-1]
TIERS = TABLE.shape[1] + 1
ROUNDING = 1e-5
FRESH = -1


def labels_of(
    tenant: int,
    rng: np.random.Generator,
    count: int,
    *,
    keys: int = 1,
    private: bool = False,
    good: float | None = None,
    brings: float = 0.0,
) -> Labels:
    """`count` labels of `tenant`'s `keys` on prompts of any classes, of which a share `brings` material; `good`: how
    often each tier is as good."""
    rates = rng.random(TIERS - 1) if good is None else np.full(TIERS - 1, good)
    scores = (rng.random((count, TIERS - 1)) < rates).astype(np.float32)
    scores[rng.random(scores.shape) < 0.2] = np.nan
    classes = rng.dirichlet(np.full(4, 0.3), count).astype(np.float32)
    return Labels(
        classes=classes,
        whole=np.where(rng.random((count, 1)) >= brings, classes, rng.dirichlet(np.full(4, 0.3), count)).astype(
            np.float32
        ),
        embedding=rng.normal(size=(count, 4)).astype(np.float32),
        surface=rng.normal(size=(count, 3)).astype(np.float32),
        scores=scores,
        weights=rng.random((count, TIERS - 1)).astype(np.float32),
        key=(100 * (tenant + 1) + rng.integers(0, keys, count)).astype(np.int32),
        context=np.full(count, -1, np.int32),
        tenant=np.full(count, tenant, np.int32),
        private=np.full(count, private),
    )


def together(*parts: Labels) -> Labels:
    return Labels(
        **{name: np.concatenate([getattr(part, name) for part in parts]) for name in Labels.__dataclass_fields__}
    )


def p_ok(known: Labels, table: Float, prompts: Float, since: int = 0) -> Float:
    """What a fresh tenant gets for prompts of these classes [n, 4], and for such that bring material [n, 4], too."""
    estimator = LocalEstimator(known, table, since, keys=())
    none = np.zeros((len(prompts), 1), np.float32)
    found = [estimator.score(prompts, none, none, FRESH, FRESH, FRESH, w) for w in (None, np.roll(prompts, 1, axis=0))]
    return np.clip(np.concatenate(found), 0.0, 1.0)


counts = st.one_of(st.integers(0, 40), st.integers(41, 3000))


@given(
    seed=st.integers(0, 2**32 - 1), floods=counts, keys=st.integers(1, 5), good=st.sampled_from([0.0, 0.5, 1.0]),
    others=st.lists(st.integers(1, 60), max_size=3), keyless=st.integers(0, 60),
)  # fmt: skip
def test_labels_of_one_tenant_move_a_fresh_tenants_probabilities_by_at_most_the_bound(
    seed: int, floods: int, keys: int, good: float, others: list[int], keyless: int
) -> None:
    rng = np.random.default_rng(seed)
    prompts = rng.dirichlet(np.full(4, 0.3), 20).astype(np.float32)
    rest = together(
        labels_of(-1, rng, keyless, brings=0.5),
        *(labels_of(t, rng, n, brings=0.5) for t, n in enumerate(others, start=1)),
    )
    flood = labels_of(0, rng, floods, keys=keys, good=good, brings=0.5)
    before, after = p_ok(rest, TABLE, prompts), p_ok(together(rest, flood), TABLE, prompts)
    assert np.abs(after - before).max() <= LABELS_BOUND + ROUNDING


@given(seed=st.integers(0, 2**32 - 1), trained=counts, since=counts, good=st.sampled_from([0.0, 0.5, 1.0]))
def test_a_retrained_table_and_the_labels_since_stay_within_the_bound_together(
    seed: int, trained: int, since: int, good: float
) -> None:
    rng = np.random.default_rng(seed)
    prompts = rng.dirichlet(np.full(4, 0.3), 20).astype(np.float32)
    rest, newer = labels_of(1, rng, 30, brings=0.5), labels_of(1, rng, 10, brings=0.5)
    flood, flood_since = (labels_of(0, rng, count, good=good, brings=0.5) for count in (trained, since))
    before = p_ok(together(rest, newer), learned_table(rest, TABLE), prompts, len(rest))
    known = together(rest, flood)
    after = p_ok(together(known, newer, flood_since), learned_table(known, TABLE), prompts, len(known))
    assert np.abs(learned_table(known, TABLE) - learned_table(rest, TABLE)).max() <= LABELS_BOUND + ROUNDING
    assert np.abs(after - before).max() <= TENANT_BOUND + ROUNDING


@given(seed=st.integers(0, 2**32 - 1), thumbs=st.integers(1, 500))
def test_private_labels_move_no_other_tenant_and_no_table(seed: int, thumbs: int) -> None:
    rng = np.random.default_rng(seed)
    prompts = np.eye(4, dtype=np.float32)
    rest = labels_of(1, rng, 30)
    flood = labels_of(0, rng, thumbs, private=True, good=0.0)
    np.testing.assert_array_equal(p_ok(rest, TABLE, prompts), p_ok(together(rest, flood), TABLE, prompts))
    np.testing.assert_array_equal(learned_table(rest, TABLE), learned_table(together(rest, flood), TABLE))


def test_the_bound_is_less_than_what_half_the_pseudo_counts_would_move() -> None:
    assert pytest.approx(1 / 6) == LABELS_BOUND
    assert pytest.approx(11 / 36) == TENANT_BOUND
    assert MOST_WEIGHT < N0_CATALOGUE / 2
    assert TENANT_BOUND < (N0_CATALOGUE / 2) / (N0_CATALOGUE + N0_CATALOGUE / 2)


def test_a_tenants_own_labels_count_fully_for_all_its_keys_and_anothers_do_not() -> None:
    rng = np.random.default_rng(1)
    bad = labels_of(0, rng, 400, good=0.0)
    estimator = LocalEstimator(bad, TABLE)
    simple, nothing = np.eye(4, dtype=np.float32)[0], np.zeros(4, np.float32)
    own, sibling, stranger = (
        estimator.estimate(simple, nothing, nothing[:3], key, -1, tenant).p_ok[0]
        for key, tenant in ((100, 0), (7, 0), (8, 5))
    )
    assert max(own, sibling) < 0.2
    assert stranger > TABLE[0, 0] * (1 - LABELS_BOUND) - ROUNDING


def test_labels_without_a_tenant_are_not_capped() -> None:
    rng = np.random.default_rng(2)
    bad = labels_of(-1, rng, 400, good=0.0)
    prompts = np.eye(4, dtype=np.float32)
    assert p_ok(bad, TABLE, prompts)[0, 0] < 0.3


def test_many_tenants_that_agree_move_a_fresh_one() -> None:
    rng = np.random.default_rng(3)
    all_bad = together(*(labels_of(tenant, rng, 60, good=0.0) for tenant in range(30)))
    assert p_ok(all_bad, TABLE, np.eye(4, dtype=np.float32))[0, 0] < 0.2
