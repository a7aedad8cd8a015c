"""Welch's test of two means of independent values, from their moments alone (Welch, "The generalization of Student's
problem when several different population variances are involved", Biometrika 34, 1947)."""

from math import erfc, log1p, sqrt

import msgspec


class Sample(msgspec.Struct, frozen=True, kw_only=True):
    """`size` independent values with this `mean` and unbiased `variance`, in the square of the mean's unit."""

    size: int
    mean: float
    variance: float


def exceeds_p_value(new: Sample, old: Sample, factor: float = 1.0) -> float:
    """Return the one-sided p-value of "the mean of `new` is at most `factor` times that of `old`".

    The difference is tested, not a ratio: a mean of 0 is allowed. Values that do not vary leave nothing to chance: the
    p-value is 0 or 1 then. Raises `ValueError` for fewer than two values on a side.
    """
    if min(new.size, old.size) < 2:
        raise ValueError(f"the samples have {new.size} and {old.size} values; a variance needs 2")
    difference = new.mean - factor * old.mean
    parts = [(new.variance / new.size, new.size), (factor * factor * old.variance / old.size, old.size)]
    squared_error = sum(part for part, _ in parts)
    if squared_error <= 0:
        return 0.0 if difference > 0 else 1.0
    freedom = squared_error**2 / sum(part * part / (size - 1) for part, size in parts)
    return student_tail(difference / sqrt(squared_error), freedom)


def student_tail(t: float, freedom: float) -> float:
    """Return P(T >= t) of Student's t with `freedom` degrees, at least 1, by Wallace's normal approximation ("Bounds on
    normal approximations to Student's and the chi-square distributions", Annals of Mathematical Statistics 30, 1959):
    within 3% of the exact value from 5 degrees on, down to a probability of 1e-4."""
    z = (8 * freedom + 1) / (8 * freedom + 3) * sqrt(freedom * log1p(t * t / freedom))
    tail = erfc(z / sqrt(2)) / 2
    return tail if t >= 0 else 1 - tail
