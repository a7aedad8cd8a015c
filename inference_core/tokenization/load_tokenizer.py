"""Loads the tokeniser that comes with a model."""

from pathlib import Path

from inference_core.tokenization.gguf_vocabulary import read_gguf_vocabulary
from inference_core.tokenization.hf_vocabulary import read_hf_vocabulary
from inference_core.tokenization.tokenizer import Tokenizer


def load_tokenizer(path: Path) -> Tokenizer:
    """The tokeniser of a GGUF file or a Hugging Face folder. Raises ModelFileError.

    Nothing is cached: reading a tokeniser back takes as long as building it from the model file.
    """
    return Tokenizer(read_hf_vocabulary(path) if path.is_dir() else read_gguf_vocabulary(path))
