"""Opens a model file by what it is."""

from pathlib import Path

from inference_core.errors import ModelFileError
from inference_core.loaders.checkpoint import Checkpoint
from inference_core.loaders.gguf_format.gguf_checkpoint import GGUFCheckpoint
from inference_core.loaders.huggingface.hf_checkpoint import HFCheckpoint


def open_checkpoint(path: Path, cache_dir: Path | None = None) -> Checkpoint:
    """A GGUF file or a Hugging Face folder. `cache_dir` remembers content hashes between processes."""
    if not path.exists():
        raise ModelFileError(f"model file {path} does not exist")
    return HFCheckpoint(path, cache_dir) if path.is_dir() else GGUFCheckpoint(path, cache_dir)
