"""Whether two answers agree: None never does, and where it is in doubt neither does anything else."""

from tiers.final_answer.entities import same_entity
from tiers.final_answer.extract import FinalAnswer, final_answer


def agree(one: FinalAnswer | None, other: FinalAnswer | None) -> bool:
    """Return whether two final answers are the same.

    Entities agree by containment or token F1 of at least 0.5 (see `same_entity`), numbers if they are equal and their
    units too, or one has none; all others by equality.
    """
    if one is None or other is None or one.kind != other.kind:
        return False
    if one.kind == "entity":
        return same_entity(one.value, other.value)
    if one.kind == "number":
        (number, _, unit), (number_too, _, unit_too) = one.value.partition(" "), other.value.partition(" ")
        return number == number_too and (unit == unit_too or not unit or not unit_too)
    return one.value == other.value


def agreement(prompt: str, text: str, other: str) -> float | None:
    """Return 1 if two answers to `prompt` have the same final answer, else 0; None if `text` has none to check."""
    own = final_answer(prompt, text)
    return None if own is None else float(agree(own, final_answer(prompt, other)))
