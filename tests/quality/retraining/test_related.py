"""Folds of labels: related prompts share one, and the folds stay even."""

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from classifier.features.routing_input import routing_input_of_text
from classifier.registry.artefact import default_artefact, load_artefact
from quality.retraining import levels as related_module
from quality.retraining.levels import ALIKE, FOLDS, related, related_folds

Float = npt.NDArray[np.float32]


def unlike(rng: np.random.Generator, n: int, dim: int = 64) -> Float:
    """Unit vectors whose cosines are near 0."""
    found = rng.normal(size=(n, dim)).astype(np.float32)
    return found / np.linalg.norm(found, axis=1, keepdims=True)


def templates(rng: np.random.Generator, sizes: list[int]) -> tuple[Float, npt.NDArray[np.intp]]:
    """Prompts of templates with so many each, in any order, at cosines of about 0.9996 within; and their templates."""
    centres = unlike(rng, len(sizes))
    which = rng.permutation(np.repeat(np.arange(len(sizes)), sizes))
    return centres[which] + 0.02 * unlike(rng, len(which)), which


@given(seed=st.integers(0, 2**32 - 1), sizes=st.lists(st.integers(1, 9), min_size=8, max_size=30))
def test_prompts_of_one_template_share_a_fold_and_folds_are_even(seed: int, sizes: list[int]) -> None:
    embedding, template = templates(np.random.default_rng(seed), sizes)
    most = max(len(embedding) // FOLDS, 1)
    fold = related_folds(embedding)
    for number in np.flatnonzero(np.array(sizes) <= most):
        assert len(set(fold[template == number].tolist())) == 1
    held = np.bincount(fold, minlength=FOLDS)
    assert held.max() - held.min() <= max(sizes)
    np.testing.assert_array_equal(fold, related_folds(embedding))


def test_groups_do_not_depend_on_the_order_of_rows_or_on_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(1)
    embedding, template = templates(rng, [5] * 12 + [1] * 40)
    groups = related(embedding)
    assert [len(set(groups[template == number].tolist())) for number in range(52)] == [1] * 52
    assert groups.max() == 51
    assert groups[0] == 0
    order = rng.permutation(len(groups))
    monkeypatch.setattr(related_module, "_BLOCK", 7)
    mixed = related(embedding[order])
    np.testing.assert_array_equal(mixed[:, None] == mixed, groups[order][:, None] == groups[order])


def test_chains_of_alike_prompts_are_one_group() -> None:
    turn = np.arccos(ALIKE[0]) * 0.9
    chain = np.array([[np.cos(i * turn), np.sin(i * turn), 0.0] for i in range(3)], np.float32)
    others = np.eye(20, dtype=np.float32)
    embedding = np.vstack([np.pad(chain, ((0, 0), (0, 17))), others[2:]])
    assert embedding[0] @ embedding[2] < ALIKE[0]
    assert related(embedding)[:3].tolist() == [0, 0, 0]
    assert len(set(related(embedding).tolist())) == 1 + 18


def test_a_template_of_nearly_all_prompts_is_divided_so_that_there_is_something_to_learn_from() -> None:
    rng = np.random.default_rng(2)
    same = np.repeat(unlike(rng, 1), 50, axis=0)
    for embedding in (same, templates(rng, [60, 2])[0], np.zeros((40, 8), np.float32)):
        held = np.bincount(related_folds(embedding), minlength=FOLDS)
        assert held.max() <= len(embedding) // FOLDS + 2
    assert related_folds(same[:0]).tolist() == []


def test_closer_prompts_of_a_divided_template_stay_together() -> None:
    rng = np.random.default_rng(3)
    embedding, _ = templates(rng, [60, 2])
    embedding[:4] = embedding[0]
    assert len(set(related_folds(embedding)[:4].tolist())) == 1


def test_other_numbers_that_the_encoder_does_not_know_make_no_other_prompt() -> None:
    encoder = load_artefact(default_artefact())
    filled = [f"Is {n} a prime number? Answer yes or no." for n in (15, 47, 31)]
    others = [
        "Write a poem about autumn leaves.", "Sort this list in Python without a library.",
        "Which vitamin does the skin make in sunlight?", "Translate good evening to French.",
        "Name the capital of Peru.", "Why is the sky blue at noon?", "Fix the bug in my SQL join.",
        "Summarise the plot of Hamlet.", "What is the boiling point of ethanol?",
    ]  # fmt: skip
    embedding = np.stack([encoder.encode(routing_input_of_text(text)).embedding for text in (*filled, *others)])
    assert related(embedding).tolist() == [0, 0, 0, *range(1, 10)]
