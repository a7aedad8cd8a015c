"""A labelled set with every class of prompts, and where the shipped classifier routes it among four tiers (RT-01)."""

import tomllib
from collections import Counter
from pathlib import Path

import msgspec
import pytest

from classifier.complexity.classes import Complexity
from classifier.prompt_predictions import PromptRow, predict_lines
from classifier.registry.artefact import default_artefact

LABELLED: dict[str, list[str]] = tomllib.loads((Path(__file__).parent / "labelled_prompts.toml").read_text("utf-8"))


@pytest.fixture(scope="module")
def routed() -> dict[Complexity, Counter[int]]:
    """How many prompts of each class went to each tier, at the default target."""
    rows = [PromptRow(place, prompt) for place, prompt in enumerate(p for own in LABELLED.values() for p in own)]
    lines = b"".join(found for _, found in predict_lines(default_artefact(), rows, processes=1)).splitlines()
    tiers = iter([msgspec.json.decode(line)["tier"] for line in lines])
    return {Complexity[name]: Counter(next(tiers) for _ in prompts) for name, prompts in LABELLED.items()}


def test_every_class_has_as_many_prompts_and_each_occurs_once() -> None:
    assert [Complexity[name] for name in LABELLED] == list(Complexity)
    assert {len(prompts) for prompts in LABELLED.values()} == {40}
    assert len({prompt for prompts in LABELLED.values() for prompt in prompts}) == 160


@pytest.mark.parametrize("labelled", list(Complexity), ids=lambda labelled: labelled.name)
def test_the_majority_of_each_class_goes_to_its_tier(
    labelled: Complexity, routed: dict[Complexity, Counter[int]]
) -> None:
    assert routed[labelled][labelled.value] > 20, routed
