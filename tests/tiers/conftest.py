"""Fixtures of the tier tests: the laptop catalogue's tokeniser, and no proxy between a test and its own server."""

import pytest

from inference_core.loaders.hub_model import resolve_model_path
from inference_core.tokenization.load_tokenizer import load_tokenizer
from inference_core.tokenization.tokenizer import Tokenizer
from tiers.catalog.load import load_catalog


@pytest.fixture(scope="session")
def tokenizer() -> Tokenizer:
    return load_tokenizer(resolve_model_path(load_catalog("laptop").core.models[0].path))
