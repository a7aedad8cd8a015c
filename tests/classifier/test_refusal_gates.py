"""Artefacts broken on purpose are refused, each for its own reason."""

import copy
from typing import Any

import numpy as np
from synthetic_outcomes import generated_rows

from classifier.heads import Heads
from classifier.outcome_model import OutcomeModel
from classifier.routing_input import routing_input_of_text
from classifier.training.dataset import OutcomeRow, outcome_labels, tier_scores
from classifier.training.encoded_rows import EncodedRows, encode_rows
from classifier.training.evaluate import Report, evaluate, refusal_reasons
from classifier.training.train import Candidate


class TooSure(Heads):
    """Heads whose logits are four times what they should be."""

    def logits(self, *given: Any) -> Any:
        return 4 * super().logits(*given)


class Guessing(Heads):
    """Heads that say something calibrated in the mean and unrelated to the prompt."""

    def logits(self, *given: Any) -> Any:
        logits = super().logits(*given)
        return np.random.default_rng(0).permutation(logits)


def encoded(model: OutcomeModel, rows: list[OutcomeRow]) -> EncodedRows:
    domains = sorted({row.domain for row in rows})
    return encode_rows(
        model.encoder,
        [routing_input_of_text(row.prompt) for row in rows],
        outcome_labels(tier_scores(rows)),
        group=np.array([domains.index(row.domain) for row in rows], np.int32),
    )


def report_on(model: OutcomeModel) -> Report:
    rows = generated_rows(1500)
    parts = {name: encoded(model, [r for r in rows if r.split == name]) for name in ("train", "valid", "test")}
    return evaluate(model, train=parts["train"], valid=parts["valid"], test=parts["test"])


def with_heads(model: OutcomeModel, kind: type[Heads]) -> OutcomeModel:
    heads = copy.copy(model.heads)
    heads.__class__ = kind
    return OutcomeModel(model.manifest, model.encoder, heads, model.memory)


def test_the_artefact_itself_passes_every_gate(tiny: Candidate) -> None:
    report = report_on(tiny.model)
    assert refusal_reasons(report) == []


def test_probabilities_that_are_too_sure_are_refused_for_their_calibration(tiny: Candidate) -> None:
    reasons = refusal_reasons(report_on(with_heads(tiny.model, TooSure)))
    assert any("calibration error" in reason for reason in reasons)


def test_choices_unrelated_to_the_prompt_are_refused_for_the_shuffled_control(tiny: Candidate) -> None:
    reasons = refusal_reasons(report_on(with_heads(tiny.model, Guessing)))
    assert any("shuffled control" in reason for reason in reasons)
