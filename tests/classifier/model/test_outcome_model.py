"""Predictions of a loaded artefact, and what serving imports."""

import subprocess
import sys

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from classifier.features.routing_input import routing_input_of_text
from classifier.model.outcome_model import OutcomeModel
from classifier.policy.decide import heuristic_prediction
from classifier.registry.artefact import default_artefact, load_artefact
from classifier.training.recipes.train_static import Candidate
from tests.examples import examples

EASY, HARD = "What is the red dog house river?", "What is the cohomology functor tensor manifold lattice?"


@pytest.fixture(scope="module")
def shipped() -> OutcomeModel:
    return load_artefact(default_artefact())


def test_a_prompt_of_hard_words_has_a_lower_chance_at_the_cheap_tiers(tiny: Candidate) -> None:
    easy, hard = (tiny.model.predict(routing_input_of_text(t)) for t in (EASY, HARD))
    assert hard.p_ok[0] + 0.3 < easy.p_ok[0]
    assert easy.p_ok[-1] == hard.p_ok[-1] == 1.0


def test_the_explanation_names_what_lowered_the_chance(tiny: Candidate) -> None:
    contributions = dict(tiny.model.predict(routing_input_of_text(HARD)).contributions)
    assert {"wording", "topic", "neighbourhood"} & set(contributions)
    assert sum(contributions.values()) < 0


def test_a_prompt_of_unknown_words_is_more_novel_than_a_known_one(tiny: Candidate) -> None:
    known = tiny.model.predict(routing_input_of_text(HARD)).novelty
    unknown = tiny.model.predict(routing_input_of_text("zxq vvw qpl")).novelty
    assert known < unknown == 1.0


def test_a_model_is_a_prior_until_it_has_learned_of_the_serving_catalogue(tiny: Candidate) -> None:
    heads_of = tiny.model.manifest.catalogue_fingerprint
    learned = msgspec.structs.replace(tiny.model.manifest, catalogue_fingerprint="ours", adequacy=[[0.5] * 3] * 4)
    made = OutcomeModel(learned, tiny.model.encoder, tiny.model.heads, tiny.model.memory)
    kinds = [made.for_catalogue(name).kind for name in ("ours", "another", "")]
    assert kinds == ["measured", "prior", "prior"]
    assert load_artefact(tiny.folder, heads_of).kind == "prior", "heads of an earlier release decide nothing"


@settings(max_examples=examples(60), deadline=None)
@given(st.text(max_size=3000))
def test_any_text_gets_probabilities_and_the_same_ones_twice(shipped: OutcomeModel, text: str) -> None:
    prompt = routing_input_of_text(text)
    found = shipped.predict(prompt)
    assert len(found.p_ok) == 4
    assert all(0 < p <= 1 for p in found.p_ok)
    assert 0 <= found.novelty <= 1
    assert shipped.predict(prompt) == found


def test_one_prompt_and_many_get_the_same_probabilities(tiny: Candidate) -> None:
    prompts = [routing_input_of_text(t) for t in (EASY, HARD, "")]
    turns = [tiny.model.encode(p) for p in prompts]
    many = tiny.model.outcomes(*(np.stack(part) for part in zip(*turns, strict=True)))
    for row, prompt in zip(many.p, prompts, strict=True):
        assert tiny.model.predict(prompt).p_ok[:3] == pytest.approx(row[:3].tolist(), abs=1e-5)


def test_serving_imports_neither_torch_nor_scikit_learn_nor_scipy() -> None:
    code = (
        "import sys, classifier.registry.artefact, classifier.prompt_predictions, classifier.policy.decide, "
        "classifier.policy.decide\n"
        "banned = {'torch', 'transformers', 'sklearn', 'scipy'} & set(sys.modules)\n"
        "sys.exit(f'imported: {sorted(banned)}' if banned else 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_the_heuristic_trusts_cheap_tiers_less_with_length_and_signs_of_reasoning() -> None:
    short, long, hard = (
        heuristic_prediction(routing_input_of_text(t))
        for t in ("hi", "word " * 600, "Prove it step by step and explain why.")
    )
    assert short.p_ok[0] > long.p_ok[0]
    assert short.p_ok[0] > hard.p_ok[0]
    for found in (short, long, hard):
        assert found.kind == "heuristic"
        assert found.p_ok == sorted(found.p_ok)
        assert found.p_ok[-1] == 1.0
        assert all(0 <= p <= 1 for p in found.p_ok)
