"""Opens a model file or folder with the reader of its format."""

from pathlib import Path

from inference_core.errors import ModelFileError
from inference_core.loaders.checkpoint import Checkpoint


def open_checkpoint(path: Path, cache_dir: Path | None = None) -> Checkpoint:
    """Open a GGUF file or a Hugging Face folder. `cache_dir` caches content hashes between processes."""
    if not path.exists():
        raise ModelFileError(f"model file {path} does not exist")
    # Imported here: a process reads one of the formats.
    if path.is_dir():
        from inference_core.loaders.huggingface.hf_checkpoint import HFCheckpoint

        return HFCheckpoint(path, cache_dir)
    from inference_core.loaders.gguf_format.gguf_checkpoint import GGUFCheckpoint

    return GGUFCheckpoint(path, cache_dir)
