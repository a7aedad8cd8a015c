"""A tiny GGUF model with a vocabulary of letters, whose states say which letters a turn has, and little else."""

import string
from pathlib import Path

from classifier.encoders.hidden_state_encoder import StateSpec
from inference_core.loaders.model_file import file_fingerprint
from tests.inference_core.tiny_gguf import VOCAB, decoder_weights, write_gguf

COMPUTE = "float32"


def tiny_model(path: Path, seed: int = 0) -> Path:
    tokens = [*string.ascii_lowercase, "Ġ", *string.digits, "W", "th", "<|im_end|>"]
    assert len(tokens) == VOCAB
    tokenizer = {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "gpt-2",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [1] * (VOCAB - 1) + [3],
        "tokenizer.ggml.merges": ["t h"],
        "tokenizer.ggml.eos_token_id": VOCAB - 1,
    }
    return write_gguf(path, decoder_weights(seed=seed), tokenizer=tokenizer)


def tiny_spec(model: Path) -> StateSpec:
    return StateSpec(model=str(model), fingerprint=file_fingerprint(model), compute=COMPUTE, layer=1, max_tokens=96)
