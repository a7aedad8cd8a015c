"""`python -m tests.classifier.features.pasted_figures`: where requests about pasted material go, read whole and with a
stand-in for the material, and what the reading costs, as tables in Markdown."""

import time
from collections.abc import Callable
from statistics import median

import pytest

from classifier.features import routing_input as routing_input_module
from classifier.features.material import as_read
from tests.classifier.features.test_material import PASTED, QUESTIONS, tiers_of, turn_of

FORMS: dict[str, Callable[[dict[str, str]], str]] = {
    "as it is": turn_of,
    "ten times as long": lambda one: turn_of(one, 10),
    "a hundred times as long": lambda one: turn_of(one, 100),
    "the request alone": lambda one: one["ask"],
}


def share_within(form: Callable[[dict[str, str]], str]) -> float:
    """Return the share of the requests whose tier is within their range."""
    tiers = tiers_of([form(one) for one in QUESTIONS])
    right = [one["range"][0] <= tier <= one["range"][1] for one, tier in zip(QUESTIONS, tiers, strict=True)]
    return sum(right) / len(right)


def microseconds(turn: str) -> float:
    """Return the processor time of one reading of `turn`, the least of several rounds."""
    rounds = []
    for _ in range(7):
        began = time.process_time()
        for _ in range(100):
            as_read(turn)
        rounds.append(time.process_time() - began)
    return min(rounds) * 1e4


def main() -> None:
    print(f"| the material, {len(QUESTIONS)} requests | read whole | with a stand-in |\n| --- | --- | --- |")
    for name, form in FORMS.items():
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(routing_input_module, "as_read", lambda text: text)
            whole = share_within(form)
        print(f"| {name} | {whole:.2f} | {share_within(form):.2f} |")
    print("\n| the material, microseconds of a processor | median | most |\n| --- | --- | --- |")
    for times in (1, 10, 100):
        turns = ["\n".join(["How many are there?\n", *[text] * times]) for text in PASTED.values()]
        spent = [microseconds(turn) for turn in turns]
        print(f"| {times} times as long | {median(spent):.0f} | {max(spent):.0f} |")


if __name__ == "__main__":
    main()
