"""Loads the tokeniser that comes with a model."""

from pathlib import Path

from inference_core.extras import require_extra
from inference_core.tokenization.tokenizer import Tokenizer


def load_tokenizer(path: Path) -> Tokenizer:
    """Load the tokeniser of a GGUF file or a Hugging Face folder. Raises ModelFileError, and MissingExtraError.

    It is not cached on disk, since reading it back takes as long as building it.
    """
    require_extra("local", f"the tokeniser of {path}")
    # Imported here: a gateway that only passes requests on is installed without these formats' libraries.
    from inference_core.tokenization.gguf_vocabulary import read_gguf_vocabulary
    from inference_core.tokenization.hf_vocabulary import read_hf_vocabulary

    return Tokenizer(read_hf_vocabulary(path) if path.is_dir() else read_gguf_vocabulary(path))
