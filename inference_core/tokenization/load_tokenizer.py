"""Loads the tokeniser that comes with a model."""

import threading
from pathlib import Path
from weakref import WeakValueDictionary

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


_shared: WeakValueDictionary[object, Tokenizer] = WeakValueDictionary()
_loading = threading.Lock()


def shared_tokenizer(path: Path) -> Tokenizer:
    """Return the tokeniser of a model, the same one to all who use it at once, as long as its files stay the same.

    Raises as `load_tokenizer` does. Loading holds the interpreter's lock for tens of milliseconds.
    """
    with _loading:
        state = path, _files(path)
        tokenizer = _shared.get(state)
        if tokenizer is None:
            tokenizer = _shared[state] = load_tokenizer(path)
        return tokenizer


def _files(path: Path) -> object:
    """What changes with the files that describe a tokeniser."""
    described = [file for file in path.iterdir() if file.suffix in (".json", ".jinja")] if path.is_dir() else [path]
    states = ((file.name, file.stat()) for file in sorted(described) if file.exists())
    return tuple((name, state.st_mtime_ns, state.st_size, state.st_ino) for name, state in states)
