"""Opens a model file or folder with the reader of its format."""

from pathlib import Path

from inference_core.errors import ModelFileError
from inference_core.extras import optional_imports
from inference_core.loaders.checkpoint import Checkpoint
from inference_core.loaders.huggingface.hf_checkpoint import HFCheckpoint


def open_checkpoint(path: Path, cache_dir: Path | None = None) -> Checkpoint:
    """Open a GGUF file or a Hugging Face folder. `cache_dir` caches content hashes between processes."""
    if not path.exists():
        raise ModelFileError(f"model file {path} does not exist")
    if path.is_dir():
        return HFCheckpoint(path, cache_dir)
    # Imported here: a gateway that only passes requests on is installed without the format's library.
    with optional_imports(f"the GGUF file {path}"):
        from inference_core.loaders.gguf_format.gguf_checkpoint import GGUFCheckpoint

    return GGUFCheckpoint(path, cache_dir)
