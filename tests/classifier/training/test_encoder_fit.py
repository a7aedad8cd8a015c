"""Fitting the static encoder: distillation of a teacher's vectors."""

import numpy as np
import numpy.typing as npt

from classifier.encoders.static_encoder import StaticEncoder
from classifier.training.fitting.static_encoder import fit_encoder

WORDS = [f"word{chr(97 + i // 26)}{chr(97 + i % 26)}" for i in range(60)]
DIM = 8


def turns(n: int, seed: int) -> list[list[str]]:
    rng = np.random.default_rng(seed)
    return [rng.choice(WORDS, size=12).tolist() for _ in range(n)]


def meanings(tokens: list[list[str]]) -> npt.NDArray[np.float32]:
    """A teacher: the mean of secret vectors of the words."""
    secret = dict(zip(WORDS, np.random.default_rng(9).normal(size=(len(WORDS), DIM)), strict=True))
    return np.array([np.mean([secret[w] for w in t], axis=0) for t in tokens], np.float32)


def fitted(teacher: npt.NDArray[np.float32] | None) -> StaticEncoder:
    return fit_encoder(turns(600, seed=0), teacher=teacher, dim=DIM, max_terms=500, seed=0)


def encoded(encoder: StaticEncoder, tokens: list[list[str]]) -> npt.NDArray[np.float32]:
    return np.array([encoder.encode("", one) for one in tokens])


def agreement(found: npt.NDArray[np.float32], wanted: npt.NDArray[np.float32]) -> float:
    """Correlation of the cosines between all pairs of rows."""
    unit = wanted / np.linalg.norm(wanted, axis=1, keepdims=True)
    pairs = np.triu_indices(len(found), 1)
    return float(np.corrcoef((found @ found.T)[pairs], (unit @ unit.T)[pairs])[0, 1])


def test_new_turns_lie_to_each_other_as_their_teachers_vectors_do() -> None:
    teacher, new = meanings(turns(600, seed=0)), turns(100, seed=1)
    wanted = meanings(new) - teacher.mean(axis=0)
    taught, untaught = encoded(fitted(teacher), new), encoded(fitted(None), new)
    assert agreement(taught, wanted) > 0.8 > agreement(untaught, wanted) + 0.3


def test_turns_that_the_teacher_was_not_asked_about_are_encoded_too() -> None:
    given = turns(600, seed=0)
    teacher = meanings(given)
    asked = teacher.copy()
    asked[::3] = np.nan
    assert agreement(encoded(fitted(asked), given[::3]), (teacher - teacher.mean(axis=0))[::3]) > 0.8
