"""Probes: what they make of evidence, and what is refused before it can judge anything."""

from pathlib import Path

import msgspec
import numpy as np
import pytest
from safetensors.numpy import load, save

from classifier.decision import PolicyInputs, Prediction
from classifier.errors import ArtefactError
from classifier.escalation_rule import weigh_escalation
from classifier.features import FEATURE_NAMES
from classifier.probe_artefact import PROBES, SCHEMA_VERSION, ProbeManifest, evidence_names, load_probes, save_probes
from classifier.probes import ProbedTier, StageHead, Tensors, head_tensors
from classifier.token_summary import OPENING_NAMES, WHOLE_NAMES, TokenSummary

HIDDEN = 3


def tensors(value: float = 0.5) -> Tensors:
    found: Tensors = {}
    for stage, size in (("state", HIDDEN), ("opening", len(OPENING_NAMES)), ("whole", len(WHOLE_NAMES))):
        column = np.full((size, 2), value, np.float32)
        zero = np.zeros(size, np.float32)
        head = StageHead(zero, zero + 2, column, np.ones(2, np.float32), np.zeros(2, np.float32))
        found |= head_tensors(f"tier_1.{stage}", head)
    return found


def manifest() -> ProbeManifest:
    spec = ProbedTier(tier=1, model="small", fingerprint="abc", layer=4, pooling="last", judges=[1, 2])
    return ProbeManifest(
        schema_version=SCHEMA_VERSION,
        version="probes-1",
        catalog="laptop",
        label="no_worse",
        probes=[spec],
        lengths=[],
        encoder="",
        feature_names=list(FEATURE_NAMES),
        evidence_names=evidence_names(),
        classifier_version="v1",
        rows=10,
        seed=0,
        metrics={},
    )


def test_stages_build_on_one_another_and_leave_other_tiers_as_they_were(tmp_path: Path) -> None:
    probe = load_probes(save_probes(tmp_path, manifest(), tensors())).probe(1, "abc")
    assert probe is not None
    prior = [0.5, 0.8, 0.7, 1.0]
    after = probe.after_prefill(np.asarray([2.0, 2.0, 0.0], np.float32), prior)
    # Two numbers of one standard deviation each at a weight of 0.5, over the logits of 0.5 and 0.8.
    assert after == pytest.approx([1.0, 1.0 + np.log(4)], abs=1e-5)
    p = probe.p_ok(after, prior)
    assert p[2:] == [0.7, 1.0]
    assert p[0] == pytest.approx(1 / (1 + np.exp(-1.0)), abs=1e-5)
    opening = np.zeros(len(OPENING_NAMES), np.float32)
    assert probe.after_opening(opening, after) == pytest.approx(after)


def test_a_probe_of_another_model_is_refused_and_says_what_to_do(tmp_path: Path) -> None:
    probes = load_probes(save_probes(tmp_path, manifest(), tensors()))
    with pytest.raises(ArtefactError, match=r"fitted on 'small'.*Collect outcomes and fit them again"):
        probes.probe(1, "xyz")
    assert probes.probe(2, "xyz") is None


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("tier_1.state.coef", np.full((HIDDEN, 2), np.nan, np.float32), "not finite"),
        ("tier_1.state.coef", np.ones((HIDDEN, 3), np.float32), "expected"),
        ("tier_1.whole.scale", np.zeros(len(WHOLE_NAMES), np.float32), "scales not above 0"),
        ("tier_1.opening.bias", None, "missing"),
    ],
)
def test_broken_parameters_are_refused(
    tmp_path: Path, name: str, value: np.ndarray[tuple[int, ...], np.dtype[np.float32]] | None, message: str
) -> None:
    broken = tensors()
    if value is None:
        del broken[name]
    else:
        broken[name] = value
    with pytest.raises(ArtefactError, match=message):
        load_probes(save_probes(tmp_path, manifest(), broken))


def test_a_file_that_was_changed_or_cut_is_refused(tmp_path: Path) -> None:
    folder = save_probes(tmp_path, manifest(), tensors())
    blob = (folder / PROBES).read_bytes()
    (folder / PROBES).write_bytes(save(dict(load(blob)) | {"tier_1.state.bias": np.ones(2, np.float32)}))
    with pytest.raises(ArtefactError, match="SHA-256"):
        load_probes(folder)
    (folder / PROBES).unlink()
    with pytest.raises(ArtefactError, match="Fit the probes again"):
        load_probes(folder)


def test_probes_fitted_on_other_summaries_are_refused(tmp_path: Path) -> None:
    other = msgspec.structs.replace(manifest(), evidence_names=["something"])
    with pytest.raises(ArtefactError, match="other summaries"):
        load_probes(save_probes(tmp_path, other, tensors()))


def test_an_opening_is_of_eight_tokens_and_the_whole_of_all() -> None:
    summary = TokenSummary()
    for place in range(10):
        summary.add(-1.0 if place < 8 else -11.0, float(place), 2.0)
    opening = dict(zip(OPENING_NAMES, summary.opening().tolist(), strict=True))
    whole = dict(zip(WHOLE_NAMES, summary.whole(cut_off=True).tolist(), strict=True))
    assert (opening["opening_mean_logprob"], opening["opening_most_entropy"]) == (-1.0, 7.0)
    assert (whole["mean_logprob"], whole["least_logprob"], whole["most_entropy"]) == (-3.0, -11.0, 9.0)
    assert (whole["cut_off"], round(whole["log_tokens"], 4)) == (1.0, round(float(np.log(11)), 4))
    assert not TokenSummary().opening().any()


def inputs(costs: list[float], maximum: float | None = None) -> PolicyInputs:
    prediction = Prediction(p_ok=[0.9, 0.9, 1.0], kind="measured", novelty=0.0, classifier_version="v")
    return PolicyInputs(prediction=prediction, costs=costs, quality_target=0.9, tau=0.8, max_cost_usd=maximum)


def test_the_rule_hands_over_what_is_not_good_enough_to_what_is_better() -> None:
    given = inputs([1.0, 4.0, 10.0])
    assert weigh_escalation(given, 1, 2, [0.7, 0.9, 1.0], 0.0).advantage > 0
    assert weigh_escalation(given, 1, 2, [0.85, 0.9, 1.0], 0.0).advantage <= 0
    assert weigh_escalation(given, 1, 2, [0.7, 0.6, 1.0], 0.0).advantage <= 0


def test_what_is_spent_counts_towards_the_maximum() -> None:
    assert weigh_escalation(inputs([1.0, 4.0, 10.0], 4.5), 1, 2, [0.1, 0.9, 1.0], 0.5).advantage > 0
    choice = weigh_escalation(inputs([1.0, 4.0, 10.0], 4.4), 1, 2, [0.1, 0.9, 1.0], 0.5)
    assert choice.advantage == 0.0
    assert "above the maximum" in choice.reason
