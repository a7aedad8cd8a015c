"""Novelty: prompts of an unknown domain are distinguished from outliers of known ones."""

import numpy as np
import pytest

from classifier.model.knn_memory import Novelty
from classifier.training.data.encoded_rows import EncodedRows
from classifier.training.fitting.heads import fit_novelty

DIM, PER_DOMAIN = 12, 150
CENTRES = np.random.default_rng(1).normal(size=(6, DIM))


def prompts(domain: int, count: int, seed: int) -> np.ndarray:
    """Around the domain's centre, three times as wide along two directions that have nothing to do with domains."""
    rng = np.random.default_rng(seed)
    spread = np.where(np.arange(DIM) < 2, 3.0, 0.5)
    return (CENTRES[domain] * (np.arange(DIM) >= 2) + spread * rng.normal(size=(count, DIM))).astype(np.float32)


def rows(*domains: int, unnamed: bool = False) -> EncodedRows:
    vectors = np.concatenate([prompts(domain, PER_DOMAIN, domain) for domain in domains])
    n = len(vectors)
    blank, group = np.zeros((n, 1), np.float32), np.repeat(np.array(domains, np.int32), PER_DOMAIN)
    group = np.full(n, -1, np.int32) if unnamed else group
    return EncodedRows(blank, vectors, blank, blank, np.ones(n, np.float32), group, np.arange(n) % 5 == 4)


@pytest.fixture(scope="module")
def fitted() -> Novelty:
    found = fit_novelty(rows(0, 1, 2, 3, 4), seed=0)
    assert found is not None
    return found


def test_prompts_of_known_domains_have_every_novelty_alike(fitted: Novelty) -> None:
    shares = fitted.shares(np.concatenate([prompts(domain, 200, 50 + domain) for domain in range(5)]))
    assert np.mean(shares >= 0.95) == pytest.approx(0.05, abs=0.04)
    assert np.median(shares) == pytest.approx(0.5, abs=0.08)


def test_an_unknown_domain_is_novel_and_odd_prompts_of_a_known_one_are_not(fitted: Novelty) -> None:
    assert np.mean(fitted.shares(prompts(5, 200, 70)) >= 0.95) > 0.8
    odd = prompts(0, 200, 71)
    odd[:, 0] += 8.0  # far out in a direction that says nothing about domains
    assert np.mean(fitted.shares(odd) >= 0.95) < 0.2


def test_one_prompt_and_many_get_the_same_and_no_known_word_is_as_novel_as_can_be(fitted: Novelty) -> None:
    many = np.concatenate([prompts(2, 5, 72), prompts(5, 5, 73), np.zeros((1, DIM), np.float32)])
    assert [fitted.share(one) for one in many] == pytest.approx(fitted.shares(many).tolist(), abs=0.01)
    assert fitted.share(many[-1]) == 1.0


def test_stored_and_loaded_it_is_the_same_and_artefacts_may_lack_it(fitted: Novelty) -> None:
    again = Novelty.from_tensors(fitted.tensors())
    assert again is not None
    np.testing.assert_array_equal(again.shares(prompts(1, 20, 74)), fitted.shares(prompts(1, 20, 74)))
    assert Novelty.from_tensors({}) is None


def test_experience_without_a_domain_makes_what_is_like_it_familiar() -> None:
    known, new = rows(0, 1, 2, 3), rows(4, 5, unnamed=True)
    before, after = fit_novelty(known, seed=0), fit_novelty(known.joined(new), seed=0)
    assert before is not None
    assert after is not None
    fresh = np.concatenate([prompts(4, 100, 75), prompts(5, 100, 76)])
    assert np.mean(before.shares(fresh) >= 0.95) > 0.8
    assert np.mean(after.shares(fresh) >= 0.95) < 0.3


def test_too_few_rows_or_a_single_domain_tell_nothing_of_others() -> None:
    assert fit_novelty(rows(0), seed=0) is None
    assert fit_novelty(rows(0, 1).take(np.arange(2 * PER_DOMAIN) % PER_DOMAIN < 12), seed=0) is None


def test_a_new_domain_of_which_a_few_prompts_were_verified_among_others_is_not_novel_any_more() -> None:
    known = rows(0, 1, 2, 3, 4)
    mixed = np.concatenate([prompts(domain, 24, 90 + domain) for domain in range(6)])
    blank = np.zeros((len(mixed), 1), np.float32)
    verified = EncodedRows(
        blank, mixed, blank, blank, np.ones(len(mixed), np.float32), np.full(len(mixed), -1, np.int32),
        np.arange(len(mixed)) % 7 == 6,
    )  # fmt: skip

    before, after = (fit_novelty(some, seed=0) for some in (known, known.joined(verified)))

    assert before is not None
    assert after is not None
    assert np.mean(before.shares(prompts(5, 200, 70)) >= 0.95) > 0.8
    assert np.mean(after.shares(prompts(5, 200, 70)) >= 0.95) < 0.25
