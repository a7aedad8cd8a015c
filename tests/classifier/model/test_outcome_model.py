"""What a loaded artefact has learned of a catalogue, and what serving imports."""

import subprocess
import sys

import msgspec

from classifier.features.routing_input import routing_input_of_text
from classifier.model.outcome_model import OutcomeModel
from classifier.policy.decide import heuristic_prediction
from classifier.registry.artefact import load_artefact
from classifier.training.recipes.train_static import Candidate


def test_a_model_is_a_prior_until_it_has_learned_of_the_serving_catalogue(tiny: Candidate) -> None:
    trained_on = tiny.model.manifest.catalogue_fingerprint
    learned = msgspec.structs.replace(tiny.model.manifest, catalogue_fingerprint="ours", adequacy=[[0.5] * 3] * 4)
    made = OutcomeModel(learned, tiny.model.encoder)
    kinds = [made.for_catalogue(name).kind for name in ("ours", "another", "")]
    assert kinds == ["measured", "prior", "prior"]
    assert load_artefact(tiny.folder, trained_on).kind == "prior", "it learned of others' outcomes"


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
