"""Loads the tokeniser that comes with a model."""

from pathlib import Path

from inference_core.extras import optional_imports
from inference_core.tokenization.tokenizer import Tokenizer


def load_tokenizer(path: Path) -> Tokenizer:
    """Load the tokeniser of a GGUF file or a Hugging Face folder. Raises ModelFileError, and MissingExtraError.

    It is not cached on disk, since reading it back takes as long as building it.
    """
    # Imported here: a gateway that only passes requests on is installed without these formats' libraries.
    with optional_imports(f"the tokeniser of {path}"):
        if path.is_dir():
            from inference_core.tokenization.hf_vocabulary import read_hf_vocabulary

            return Tokenizer(read_hf_vocabulary(path))
        from inference_core.tokenization.gguf_vocabulary import read_gguf_vocabulary

        return Tokenizer(read_gguf_vocabulary(path))
