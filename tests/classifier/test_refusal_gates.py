"""Artefacts broken on purpose are refused, each for its own reason."""

import copy
import re
from typing import Any

import msgspec
import numpy as np
import pytest
from synthetic_outcomes import generated_rows

from classifier.heads import Heads
from classifier.outcome_model import OutcomeModel
from classifier.routing_input import routing_input_of_text
from classifier.training.dataset import OutcomeRow, outcome_labels, tier_scores
from classifier.training.encoded_rows import EncodedRows, encode_rows
from classifier.training.evaluate import Report, evaluate, refusal_reasons
from classifier.training.routing import PRICES
from classifier.training.target_check import target_check
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


def with_curve(model: OutcomeModel, **curve: Any) -> OutcomeModel:
    curves = msgspec.structs.replace(model.manifest.curves, **curve)
    manifest = msgspec.structs.replace(model.manifest, curves=curves)
    return OutcomeModel(manifest, model.encoder, model.heads, model.memory)


def test_the_artefact_itself_passes_every_gate(tiny: Candidate) -> None:
    report = report_on(tiny.model)
    assert refusal_reasons(report) == []
    assert [check.lowered for check in report.targets] == [0, 0]


def test_probabilities_that_are_too_sure_are_refused_for_their_calibration(tiny: Candidate) -> None:
    reasons = refusal_reasons(report_on(with_heads(tiny.model, TooSure)))
    assert any("calibration error" in reason for reason in reasons)


def test_choices_unrelated_to_the_prompt_are_refused_for_the_shuffled_control(tiny: Candidate) -> None:
    reasons = refusal_reasons(report_on(with_heads(tiny.model, Guessing)))
    assert any("shuffled control" in reason for reason in reasons)


@pytest.mark.parametrize("rule", ["lambda", "tau"])
def test_a_curve_by_which_a_higher_target_lowers_a_tier_is_refused(tiny: Candidate, rule: str) -> None:
    points = getattr(tiny.model.manifest.curves, f"{rule}_rule")
    turned = [
        msgspec.structs.replace(point, parameter=other.parameter)
        for point, other in zip(points, reversed(points), strict=True)
    ]
    broken = with_curve(tiny.model, **{f"{rule}_rule": turned})
    reasons = refusal_reasons(report_on(broken))
    assert any(f"{rule} rule: a higher quality target lowers the tier" in reason for reason in reasons)
    assert any("at target" in reason for reason in reasons)


def test_the_check_names_the_prompt_and_the_targets(tiny: Candidate) -> None:
    points = tiny.model.manifest.curves.lambda_rule
    turned = [
        msgspec.structs.replace(point, parameter=other.parameter)
        for point, other in zip(points, reversed(points), strict=True)
    ]
    curves = msgspec.structs.replace(tiny.model.manifest.curves, lambda_rule=turned)
    p_ok = np.hstack([np.random.default_rng(0).random((50, 3)), np.ones((50, 1))])
    check = target_check(curves, p_ok, np.array(PRICES), "lambda")
    assert 0 < check.lowered <= check.prompts == 50
    assert re.match(r"prompt \d+ gets tier \d at target 0\.\d+ and tier \d at 0\.\d+", check.example)
