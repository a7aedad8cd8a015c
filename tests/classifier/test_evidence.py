"""Evidence of answers: the meaning of each number, how models use it, and which artefacts are refused."""

import math
from pathlib import Path

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import load, save

from classifier.decision import PolicyInputs, Prediction
from classifier.errors import ArtefactError
from classifier.evidence import (
    EVIDENCE_NAMES,
    PROBES,
    SCHEMA_VERSION,
    EvidenceHead,
    JudgedTier,
    ProbeManifest,
    Tensors,
    evidence_features,
    head_tensors,
    load_probes,
    save_probes,
    with_agreement,
)
from classifier.features.surface_features import FEATURE_NAMES
from classifier.policy.utility import weigh_escalation
from tests.examples import examples


def features(text: str, **known: object) -> dict[str, float]:
    return dict(zip(EVIDENCE_NAMES, evidence_features(text, **known).tolist(), strict=True))  # type: ignore[arg-type]


@settings(max_examples=examples(200), deadline=None)
@given(
    text=st.text(st.characters(), max_size=400) | st.text('{["`,. a1\n', max_size=60),
    finish=st.sampled_from([None, "stop", "length", "odd"]),
    uncertainty=st.lists(st.floats(), max_size=20),
    agreement=st.none() | st.floats(0, 1),
)
def test_any_text_gives_finite_numbers(
    text: str, finish: str | None, uncertainty: list[float], agreement: float | None
) -> None:
    found = evidence_features(text, finish, uncertainty, agreement)
    assert found.shape == (len(EVIDENCE_NAMES),)
    assert found.dtype == np.float32
    assert np.isfinite(found).all()


def test_uncertainty_is_summarised_by_quantiles_over_the_whole_answer() -> None:
    found = features("x", uncertainty=[0.0] * 8 + [math.e - 1] * 2)
    assert (found["uncertainty_known"], found["uncertainty_p50"], found["uncertainty_p10"]) == (1, 0, 0)
    assert found["uncertainty_worst"] == pytest.approx(1.0)
    assert 0 < found["uncertainty_p90"] <= 1.0
    unknown = features("x")
    assert not any(value for name, value in unknown.items() if name.startswith("uncertainty"))


@pytest.mark.parametrize(
    ("name", "yes", "no"),
    [
        ("hedges", "I think it might be 4, but I'm not sure.", "It is 4."),
        ("hedges", "Vielleicht sind es vier.", "Es sind vier."),
        ("refusal", "I'm sorry, but as an AI I cannot help with that.", "Here is how: turn the key."),
        ("refusal", "抱歉，我无法回答。", "答案是四。"),
        (
            "ends_mid_sentence",
            "The quick brown fox jumps over the lazy dog and then the",
            "The fox jumps over the dog.",
        ),
        ("repetition", "to be or not to be " * 5, "to be or not to be, that is the question"),
        ("code_unclosed", "```python\nx = 1\n", "```python\nx = 1\n```"),
        ("json_invalid", '{"a": [1, 2}', '{"a": [1, 2]}'),
        ("has_number", "Thus it is\n42.", "Thus 42 it is,\nas you said."),
        ("is_empty", " \n", "yes"),
    ],
)
def test_the_form_of_a_text_is_part_of_the_evidence(name: str, yes: str, no: str) -> None:
    assert features(yes)[name] > 0
    assert features(no)[name] == 0


def test_length_end_and_agreement_are_part_of_the_evidence() -> None:
    assert features("word " * 80, finish_reason="length")["cut_off"] == 1
    assert features("word " * 80)["log_length"] == pytest.approx(math.log1p(100))
    assert (features("4")["agreement_known"], features("4", agreement=1.0)["agreement"]) == (0, 1)
    assert with_agreement(evidence_features("4"), 1.0).tolist() == evidence_features("4", agreement=1.0).tolist()


def test_brackets_without_end_are_broken_json_and_take_no_deep_recursion() -> None:
    assert features("[[" * 60_000 + '"')["json_invalid"] in (0, 1)
    assert features('{"a":' * 60_000)["json_invalid"] == 1


def test_only_the_ends_of_a_long_text_are_read() -> None:
    filler = "".join(f"w{number} " for number in range(50_000))
    assert features("I think so. " + filler + " Probably.")["hedges"] == 2
    assert features(filler + " I think so. " + filler)["hedges"] == 0


def tensors(value: float = 0.5) -> Tensors:
    size = len(EVIDENCE_NAMES)
    zero = np.zeros(size, np.float32)
    column = np.full((size, 2), value, np.float32)
    return head_tensors(1, EvidenceHead(zero, zero + 2, column, np.ones(2, np.float32), np.zeros(2, np.float32)))


def manifest() -> ProbeManifest:
    return ProbeManifest(
        schema_version=SCHEMA_VERSION,
        version="probes-1",
        catalog="laptop",
        label="no_worse",
        models=[JudgedTier(tier=1, model="small", fingerprint="abc", judges=[1, 2])],
        lengths=[],
        encoder="",
        feature_names=list(FEATURE_NAMES),
        evidence_names=list(EVIDENCE_NAMES),
        classifier_version="v1",
        rows=10,
        seed=0,
        metrics={},
    )


def test_evidence_moves_the_judged_tiers_and_leaves_the_others_as_they_were(tmp_path: Path) -> None:
    model = load_probes(save_probes(tmp_path, manifest(), tensors())).model(1, "abc")
    assert model is not None
    evidence = np.zeros(len(EVIDENCE_NAMES), np.float32)
    evidence[:2] = 2.0
    # Two numbers of one standard deviation each at a weight of 0.5, over the logits of 0.5 and 0.8.
    p = model.p_ok(evidence, [0.5, 0.8, 0.7, 1.0])
    assert p[2:] == [0.7, 1.0]
    assert p[0] == pytest.approx(1 / (1 + np.exp(-1.0)), abs=1e-5)
    assert p[1] == pytest.approx(1 / (1 + np.exp(-1.0) / 4), abs=1e-5)


def test_a_model_of_another_tier_is_refused_and_says_what_to_do(tmp_path: Path) -> None:
    models = load_probes(save_probes(tmp_path, manifest(), tensors()))
    with pytest.raises(ArtefactError, match=r"fitted on 'small'.*Collect outcomes and fit them again"):
        models.model(1, "xyz")
    assert models.model(2, "xyz") is None


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("tier_1.coef", np.full((len(EVIDENCE_NAMES), 2), np.nan, np.float32), "not finite"),
        ("tier_1.coef", np.ones((len(EVIDENCE_NAMES), 3), np.float32), "expected"),
        ("tier_1.scale", np.zeros(len(EVIDENCE_NAMES), np.float32), "scales not above 0"),
        ("tier_1.bias", None, "missing"),
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


def test_an_artefact_of_an_earlier_schema_is_skipped_with_what_to_run(tmp_path: Path) -> None:
    folder = tmp_path / "probes-old"
    folder.mkdir()
    (folder / "manifest.json").write_text('{"schema_version": 1, "version": "probes-old", "probes": []}')
    with pytest.raises(ArtefactError, match=r"schema version 1; this program reads 2\. .*`aio classifier probes`"):
        load_probes(folder)


def test_a_file_that_was_changed_or_cut_is_refused(tmp_path: Path) -> None:
    folder = save_probes(tmp_path, manifest(), tensors())
    blob = (folder / PROBES).read_bytes()
    (folder / PROBES).write_bytes(save(dict(load(blob)) | {"tier_1.bias": np.ones(2, np.float32)}))
    with pytest.raises(ArtefactError, match="SHA-256"):
        load_probes(folder)
    (folder / PROBES).unlink()
    with pytest.raises(ArtefactError, match="Fit the probes again"):
        load_probes(folder)


def test_models_fitted_on_other_evidence_are_refused(tmp_path: Path) -> None:
    other = msgspec.structs.replace(manifest(), evidence_names=["something"])
    with pytest.raises(ArtefactError, match="other evidence"):
        load_probes(save_probes(tmp_path, other, tensors()))


def inputs(maximum: float | None = None) -> PolicyInputs:
    prediction = Prediction(p_ok=[0.9, 0.9, 1.0], kind="measured", novelty=0.0, classifier_version="v")
    costs = [1.0, 4.0, 10.0]
    return PolicyInputs(prediction=prediction, costs=costs, quality_target=0.9, tau=0.8, max_cost_usd=maximum)


def test_an_answer_is_escalated_to_a_tier_that_is_better_by_more_than_it_costs() -> None:
    assert weigh_escalation(inputs(), 1, [2], [0.7, 0.9, 1.0], 0.0).advantage > 0
    assert weigh_escalation(inputs(), 1, [2], [0.87, 0.9, 1.0], 0.0).advantage <= 0
    assert weigh_escalation(inputs(), 1, [2], [0.7, 0.6, 1.0], 0.0).advantage <= 0


def test_sunk_cost_counts_towards_the_maximum() -> None:
    assert weigh_escalation(inputs(4.5), 1, [2], [0.1, 0.9, 1.0], 0.5).advantage > 0
    choice = weigh_escalation(inputs(4.4), 1, [2], [0.1, 0.9, 1.0], 0.5)
    assert choice.advantage == 0.0
    assert "above the maximum" in choice.reason
