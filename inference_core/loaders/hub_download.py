"""Downloads a model by its Hugging Face id: resumable, of one commit, with progress bars on a terminal."""

import errno
import fcntl
import hashlib
import logging
import os
import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import msgspec

from inference_core.errors import ModelFileError
from inference_core.extras import require_extra
from inference_core.io.atomic_file import atomic_file
from inference_core.loaders.hub_model import (
    HubModel,
    Pin,
    downloaded,
    hub_cache,
    pins_file,
    read_pins,
    repository_folder,
    require_downloaded,
)

log = logging.getLogger(__name__)

# "any": the folder of a checkpoint if the repository has one, else a GGUF file.
Form = Literal["any", "folder", "gguf"]
Say = Callable[[str], None]
ATTEMPTS = 4
# Smaller files are not worth continuing.
SMALL_BYTES = 8 * 2**20
# What a checkpoint needs to load: its weights as safetensors, configuration, tokeniser, chat template and code.
_OF_CHECKPOINT = re.compile(r"[^/]+\.(safetensors|json|jinja|model|txt|tiktoken|py)")
_USUAL_QUANTS = ("Q4_K_M", "Q4_0", "Q4_K_S", "Q4_1", "Q8_0")
_PART = re.compile(r"-(\d{5})-of-\d{5}\.gguf$")


def download(model: HubModel, form: Form = "any", say: Say = log.info) -> Path:
    """Make the model's files present and return their location; without network use if they are here.

    The first download records the commit of `model.revision`; later ones complete the same commit. An interrupted file
    is continued where it ended, now or at the next call. `say` gets one line before a transfer and one after. Raises
    `ModelFileError` that says what is wrong and what to do, and `MissingExtraError`.
    """
    if (path := downloaded(model)) is not None:
        return path
    require_extra("hub", f"model '{model}' is a Hugging Face id, which")
    for attempt in range(1, ATTEMPTS + 1):
        try:
            return _fetched(model, form, say)
        except ModelFileError:
            raise
        except Exception as error:
            if attempt == ATTEMPTS or not _may_pass(error):
                raise ModelFileError(_explained(model, form, error)) from error
            log.warning("downloading %s: %s; trying again", model, _short(error))
            time.sleep(2 ** (attempt - 1) / 2)
    raise AssertionError("the last attempt returns or raises")


def chosen_files(model: HubModel, form: Form, names: list[str]) -> list[str]:
    """Return the files of a repository that are the model; of a GGUF file, all its parts. Raises `ModelFileError` with
    the names to choose from."""
    ggufs = sorted(name for name in names if name.endswith(".gguf") and "mmproj" not in name.lower())
    has_checkpoint = any(name.endswith(".safetensors") and "/" not in name for name in names)
    if model.file or model.quant or form == "gguf" or (form == "any" and not has_checkpoint):
        return _gguf_files(model, ggufs)
    if not has_checkpoint:
        raise ModelFileError(f"model '{model}': the repository has no safetensors files, which this engine loads")
    return sorted(name for name in names if _OF_CHECKPOINT.fullmatch(name))


def _gguf_files(model: HubModel, ggufs: list[str]) -> list[str]:
    wanted = [name for name in ggufs if name == model.file] if model.file else []
    for quant in () if model.file else (model.quant,) if model.quant else _USUAL_QUANTS:
        pattern = re.compile(rf"(^|[-._/]){quant}([-._/]|$)", re.IGNORECASE)
        wanted = wanted or [name for name in ggufs if pattern.search(name)]
    if not wanted and not model.file and not model.quant and len({_PART.sub("", name) for name in ggufs}) == 1:
        wanted = ggufs
    if not wanted:
        listed = ", ".join(ggufs) or "none"
        raise ModelFileError(
            f"model '{model}': no such GGUF file in the repository; it has {listed}. Name one by its quantisation, "
            f"'{model.repo}:Q4_K_M', or by its path, 'hf:{model.repo}/FILE.gguf'"
        )
    first = wanted[0]
    if _PART.search(first) is None:
        return [first]
    stem = _PART.sub("", first)
    return [name for name in ggufs if _PART.search(name) and _PART.sub("", name) == stem]


def _fetched(model: HubModel, form: Form, say: Say) -> Path:
    import huggingface_hub

    hub: Any = huggingface_hub.HfApi(endpoint=os.environ.get("HF_ENDPOINT"))
    pin = read_pins(model.repo).get(model.key)
    revision = model.revision if pin is None else pin.commit
    info = hub.model_info(model.repo, revision=revision, files_metadata=True)
    sizes = {one.rfilename: one.size or 0 for one in info.siblings or ()}
    files = chosen_files(model, form, list(sizes)) if pin is None else pin.files
    # Before the transfer, so that one that is continued later is of the same commit.
    _record(model, Pin(commit=str(info.sha), files=files))
    size = sum(sizes.get(file, 0) for file in files)
    say(f"downloading {model} ({size / 1e9:.2f} GB, commit {str(info.sha)[:12]}) from {hub.endpoint}")
    started = time.monotonic()
    for file in files:
        if sizes.get(file, 0) > SMALL_BYTES:
            _fetch_blob(hub, model.repo, file, str(info.sha))
        # Adds the file's name to the snapshot; what is no blob yet is fetched.
        hub.hf_hub_download(model.repo, file, revision=info.sha, cache_dir=hub_cache())
    say(f"downloaded {model} in {time.monotonic() - started:.0f} s")
    return require_downloaded(model)


def _fetch_blob(hub: Any, repo: str, file: str, commit: str) -> None:
    """Fetch a large file into the cache, from where the last attempt of any process ended.

    The library starts a file from its beginning in every process, which for a model of 40 GB is hours.
    """
    from huggingface_hub.file_download import get_hf_file_metadata, hf_hub_url, http_get
    from huggingface_hub.utils import build_hf_headers  # type: ignore[attr-defined]

    url = hf_hub_url(repo, file, revision=commit, endpoint=hub.endpoint)
    found = get_hf_file_metadata(url, endpoint=hub.endpoint)
    if found.etag is None or found.size is None or found.commit_hash != commit:
        return
    folder = repository_folder(repo)
    blob, part = folder / "blobs" / found.etag, folder / "blobs" / f"{found.etag}.aio.incomplete"
    blob.parent.mkdir(parents=True, exist_ok=True)
    with _locked(hub_cache() / ".locks" / folder.name / f"{found.etag}.aio.lock"):
        if blob.exists():
            return
        with part.open("ab") as target:
            there = target.tell()
            http_get(url, target, resume_size=there, headers=build_hf_headers(), expected_size=found.size)
        # A crash of the machine may have left zeros in what was there; a large file's tag is its SHA-256.
        if there and re.fullmatch(r"[0-9a-f]{64}", found.etag) and _sha256(part) != found.etag:
            part.unlink()
            raise OSError(f"{file} was damaged by an earlier interruption")
        part.replace(blob)


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Hold a lock among processes; the kernel gives it back when one ends."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _record(model: HubModel, pin: Pin) -> None:
    pins = read_pins(model.repo) | {model.key: pin}
    with atomic_file(pins_file(model.repo)) as file:
        file.write(msgspec.json.format(msgspec.json.encode(pins)))


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
        what = f' --include "*{model.quant or _USUAL_QUANTS[0]}*.gguf"'
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
