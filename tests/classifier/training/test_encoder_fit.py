"""Fitting the static encoder: distillation of a teacher's vectors, and cross-fitting."""

import numpy as np
import numpy.typing as npt

from classifier.features.surface_features import FEATURE_NAMES
from classifier.training.fitting.static_encoder import FOLDS, FittedEncoder, fit_encoder

WORDS = [f"word{chr(97 + i // 26)}{chr(97 + i % 26)}" for i in range(60)]
DIM = 8
NO_FEATURES = np.zeros(len(FEATURE_NAMES), np.float32)


def turns(n: int, seed: int) -> list[list[str]]:
    rng = np.random.default_rng(seed)
    return [rng.choice(WORDS, size=12).tolist() for _ in range(n)]


def meanings(tokens: list[list[str]]) -> npt.NDArray[np.float32]:
    """A teacher: the mean of secret vectors of the words."""
    secret = dict(zip(WORDS, np.random.default_rng(9).normal(size=(len(WORDS), DIM)), strict=True))
    return np.array([np.mean([secret[w] for w in t], axis=0) for t in tokens], np.float32)


def fitted(teacher: npt.NDArray[np.float32] | None, labels: npt.NDArray[np.float32] | None = None) -> FittedEncoder:
    tokens = turns(600, seed=0)
    known = np.full((600, 2), 0.5, np.float32) if labels is None else labels
    fold = np.arange(600) % FOLDS
    features = np.tile(NO_FEATURES, (600, 1))
    return fit_encoder(tokens, features, known, fold, teacher=teacher, dim=DIM, max_terms=500, rounds=1, seed=0)


def agreement(found: npt.NDArray[np.float32], wanted: npt.NDArray[np.float32]) -> float:
    """Correlation of the cosines between all pairs of rows."""
    unit = wanted / np.linalg.norm(wanted, axis=1, keepdims=True)
    pairs = np.triu_indices(len(found), 1)
    return float(np.corrcoef((found @ found.T)[pairs], (unit @ unit.T)[pairs])[0, 1])


def test_new_turns_lie_to_each_other_as_their_teachers_vectors_do() -> None:
    teacher, new = meanings(turns(600, seed=0)), turns(100, seed=1)
    wanted = meanings(new) - teacher.mean(axis=0)
    taught, untaught = (
        np.array([f.encoder.encode("", t, NO_FEATURES).embedding for t in new]) for f in (fitted(teacher), fitted(None))
    )
    assert agreement(taught, wanted) > 0.8 > agreement(untaught, wanted) + 0.3


def test_turns_that_the_teacher_was_not_asked_about_are_encoded_too() -> None:
    teacher = meanings(turns(600, seed=0))
    asked = teacher.copy()
    asked[::3] = np.nan
    found = fitted(asked)
    assert agreement(found.embedding[::3], (teacher - teacher.mean(axis=0))[::3]) > 0.8


def test_a_training_turn_is_encoded_as_if_its_own_outcome_were_unknown() -> None:
    noise = np.random.default_rng(2).integers(0, 2, size=(600, 2)).astype(np.float32)
    found = fitted(None, noise)
    own = np.array([found.encoder.encode("", t, NO_FEATURES).word_logits for t in turns(600, seed=0)])
    assert np.corrcoef(own[:, 0], noise[:, 0])[0, 1] > 0.3
    assert abs(np.corrcoef(found.word_logits[:, 0], noise[:, 0])[0, 1]) < 0.15


def test_outcomes_follow_the_words_also_where_only_some_were_observed() -> None:
    tokens = turns(600, seed=0)
    hard = np.array([sum(w < WORDS[30] for w in t) > 6 for t in tokens])
    labels = np.stack([hard, np.where(np.arange(600) % 2, hard, np.nan)], axis=1).astype(np.float32)
    logits = fitted(None, labels).word_logits
    for head in range(2):
        assert logits[hard, head].mean() > logits[~hard, head].mean() + 0.15
