"""A real model that is small enough to be measured in moments."""

from pathlib import Path

import pytest
import torch
import transformers


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
