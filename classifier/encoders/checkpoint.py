"""A Hugging Face checkpoint on disk: its files, the hash over them, and what is refused."""

import hashlib
import os
import shutil
import uuid
from pathlib import Path
from typing import Literal

from classifier.errors import CheckpointError

EncoderPooling = Literal["mean", "cls", "last", "max"]
"""What becomes of the states of a text's tokens: their mean, the first, the last, or the largest of each entry."""

# A folder of the registry; its subfolders are named by the hash of their content.
CHECKPOINTS = "encoders"
CONFIG, TOKENIZER = "config.json", "tokenizer.json"
_WEIGHTS = ".safetensors"
# The tokeniser's settings are copied for other programs; only `tokenizer.json` is needed here.
_OPTIONAL = ("tokenizer_config.json", "special_tokens_map.json", "model.safetensors.index.json")
_PICKLES = (".bin", ".pt", ".pth", ".ckpt", ".pkl", ".h5", ".msgpack")
_NAME_DIGITS = 16


def checkpoint_files(folder: Path) -> list[str]:
    """Return the sorted names of the checkpoint's files: configuration, tokeniser and safetensors.

    Other files (code, pickles, read-me) are never read. Raises `CheckpointError` naming what is missing.
    """
    if not folder.is_dir():
        raise CheckpointError(f"{folder} is no folder; give one with {CONFIG}, {TOKENIZER} and *{_WEIGHTS}.")
    names = sorted(path.name for path in folder.iterdir() if path.is_file())
    weights = [name for name in names if name.endswith(_WEIGHTS)]
    if not weights:
        pickles = [name for name in names if name.endswith(_PICKLES)]
        why = (
            f"its weights are {', '.join(pickles)}, which can run code when they are read"
            if pickles
            else "it has no weights"
        )
        raise CheckpointError(f"{folder}: {why}. Only *{_WEIGHTS} is read: save the checkpoint in that format.")
    if missing := [name for name in (CONFIG, TOKENIZER) if name not in names]:
        raise CheckpointError(f"{folder} has no {' and no '.join(missing)}; a checkpoint needs both.")
    return sorted([CONFIG, TOKENIZER, *weights, *(name for name in _OPTIONAL if name in names)])


def checkpoint_sha256(folder: Path) -> str:
    """SHA-256 over the names and contents of `checkpoint_files`. Raises `CheckpointError`."""
    digest = hashlib.sha256()
    for name in checkpoint_files(folder):
        try:
            with (folder / name).open("rb") as file:
                digest.update(f"{name}:{hashlib.file_digest(file, 'sha256').hexdigest()}\n".encode())
        except OSError as error:
            raise CheckpointError(f"{folder / name} cannot be read: {error}.") from error
    return digest.hexdigest()


def verify_checkpoint(folder: Path, sha256: str) -> None:
    """Raise `CheckpointError` unless the checkpoint in `folder` has that hash."""
    actual = checkpoint_sha256(folder)
    if actual != sha256:
        raise CheckpointError(
            f"{folder}: SHA-256 is {actual[:12]}…, the artefact was trained on {sha256[:12]}…; the checkpoint was "
            "changed. Restore it or train the artefact again."
        )


def checkpoint_folder(registry: Path, sha256: str) -> Path:
    """Return the registry's folder for the checkpoint with that hash."""
    return registry / CHECKPOINTS / sha256[:_NAME_DIGITS]


def keep_checkpoint(folder: Path, registry: Path) -> str:
    """Copy the checkpoint in `folder` into the registry, atomically, under its hash, which is returned."""
    sha256 = checkpoint_sha256(folder)
    target = checkpoint_folder(registry, sha256)
    if target.is_dir():
        verify_checkpoint(target, sha256)
        return sha256
    target.parent.mkdir(parents=True, exist_ok=True)
    incoming = target.parent / f".incoming-{uuid.uuid4().hex}"
    incoming.mkdir()
    try:
        for name in checkpoint_files(folder):
            shutil.copyfile(folder / name, incoming / name)
            with (incoming / name).open("rb") as file:
                os.fsync(file.fileno())
        verify_checkpoint(incoming, sha256)
        incoming.rename(target)
    except OSError as error:
        # Another process may have been first; an equal name implies equal content.
        if not target.is_dir():
            raise CheckpointError(f"the checkpoint cannot be kept in {target}: {error}.") from error
    finally:
        shutil.rmtree(incoming, ignore_errors=True)
    return sha256
