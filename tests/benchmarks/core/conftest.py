"""Cores and a real model that are small enough to be measured in moments."""

from pathlib import Path

import pytest
import torch
import transformers

from gateway.planning.load_test import CoreTarget
from inference_core.transport.core_thread import ThreadCoreClient
from tests.gateway.planning.load_test.word_tokenizer import WordTokenizer
from tests.support.core import core  # noqa: F401 - a fixture


@pytest.fixture
async def core_client(core: ThreadCoreClient, monkeypatch: pytest.MonkeyPatch) -> ThreadCoreClient:  # noqa: F811
    """A core with the model "m"; rows are taken without a look at how busy the machine is."""

    async def share() -> float:
        return 0.25

    monkeypatch.setattr("benchmarks.core.load_rows.busy_share", share)
    return core


@pytest.fixture
def target(core_client: ThreadCoreClient) -> CoreTarget:
    """The model "m" as benchmarks load it."""
    return CoreTarget(core_client, WordTokenizer(), "m")


@pytest.fixture
def tiny_llama(tmp_path: Path) -> str:
    """The folder of a Llama of two layers with random weights."""
    torch.manual_seed(1)
    config = transformers.LlamaConfig(
        vocab_size=64,
        hidden_size=64,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
        max_position_embeddings=128,
        tie_word_embeddings=True,
    )
    transformers.LlamaForCausalLM(config).save_pretrained(tmp_path / "model")
    return str(tmp_path / "model")
