"""A model named by its Hugging Face id, and where its files lie once `hub_download` has fetched them.

The files are in the Hugging Face cache, which other programs share. Which commit and which files a name stands for is
recorded once, in a file of AIO's own in the repository's folder there: later starts use the same files, online or not.
"""

import os
import re
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec

from inference_core.errors import ModelFileError
from inference_core.io.json_errors import JSON_ERRORS

PREFIX = "hf:"
_NAME = r"[A-Za-z0-9][A-Za-z0-9._-]*"
_ID = re.compile(
    rf"(?P<repo>{_NAME}/{_NAME})(?P<file>/[^@:]+\.gguf)?(:(?P<quant>[A-Za-z0-9_]+))?(@(?P<revision>[\w./-]+))?"
)
_PINS = "aio-pins.json"


@dataclass(frozen=True)
class HubModel:
    """`quant`: which of a repository's GGUF files, by the part of its name such as Q4_K_M; `file`: one by its path."""

    repo: str
    quant: str = ""
    file: str = ""
    revision: str = "main"

    @property
    def key(self) -> str:
        """What is recorded separately within a repository."""
        return f"{self.revision}:{self.quant or self.file}"

    def at(self, revision: str) -> "HubModel":
        """Return the same model at another branch, tag or commit."""
        return replace(self, revision=revision)

    def __str__(self) -> str:
        quant, file = f":{self.quant}" * bool(self.quant), f"/{self.file}" * bool(self.file)
        return f"{self.repo}{file}{quant}" + (f"@{self.revision}" if self.revision != "main" else "")


class Pin(msgspec.Struct, frozen=True, kw_only=True):
    """The commit that a name stands for, and the files that were downloaded of it, relative to its root."""

    commit: str
    files: list[str]


def parse_hub_model(text: str) -> HubModel | None:
    """Return the id that `text` gives: `[hf:]org/name[:QUANT][@revision]`, or `hf:org/name/FILE.gguf`. Return None for
    anything else: an existing path, a path with more or fewer parts, a GGUF file without the prefix."""
    prefixed = text.startswith(PREFIX)
    found = _ID.fullmatch(text.removeprefix(PREFIX))
    if found is None:
        return None
    is_gguf = found["file"] is not None or found["repo"].endswith(".gguf")
    if not prefixed and (is_gguf or Path(text).exists()):
        return None
    return HubModel(
        repo=found["repo"],
        quant=(found["quant"] or "").upper(),
        file=(found["file"] or "").removeprefix("/"),
        revision=found["revision"] or "main",
    )


def hub_model_of_path(text: str) -> HubModel | None:
    """Return the id of a model's path, which needs the prefix: a folder `models/name` that is not there is no id."""
    return parse_hub_model(text) if text.startswith(PREFIX) else None


def hub_cache() -> Path:
    """Return the Hugging Face cache as its own library finds it: `HF_HUB_CACHE`, `HF_HOME`/hub, or in the user's
    cache."""
    if cache := os.environ.get("HF_HUB_CACHE"):
        return Path(cache).expanduser()
    home = os.environ.get("HF_HOME") or Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache") / "huggingface"
    return Path(home).expanduser() / "hub"


def downloaded(model: HubModel) -> Path | None:
    """Return the folder of the model's files, or its GGUF file; None unless all of them are here."""
    pin = read_pins(model.repo).get(model.key)
    if pin is None:
        return None
    snapshot = repository_folder(model.repo) / "snapshots" / pin.commit
    if not pin.files or not all((snapshot / file).is_file() for file in pin.files):
        return None
    return snapshot / pin.files[0] if pin.files[0].endswith(".gguf") else snapshot


def require_downloaded(model: HubModel) -> Path:
    """Return the model's location. Raises `ModelFileError` that says how to get it."""
    path = downloaded(model)
    if path is None:
        raise ModelFileError(
            f"model '{model}' is not on this machine and no such path exists; download it: aio models pull '{model}'"
        )
    return path


def repository_folder(repo: str) -> Path:
    """Return the folder of a repository in the cache."""
    return hub_cache() / f"models--{repo.replace('/', '--')}"


def pins_file(repo: str) -> Path:
    """Return the file of a repository's pins."""
    return repository_folder(repo) / _PINS


def read_pins(repo: str) -> dict[str, Pin]:
    """Return the recorded commits by `HubModel.key`; none if the file is missing or damaged."""
    try:
        return msgspec.json.decode(pins_file(repo).read_bytes(), type=dict[str, Pin])
    except (OSError, *JSON_ERRORS):
        return {}
