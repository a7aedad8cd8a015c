"""Downloads a model by its Hugging Face id: resumable, of one commit, with progress bars on a terminal."""

import fcntl
import hashlib
import logging
import os
import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from inference_core.errors import ModelFileError
from inference_core.extras import require_extra
from inference_core.io.files import atomic_file
from inference_core.loaders.hub_model import (
    USUAL_QUANTS,
    Form,
    HubModel,
    Pin,
    downloaded,
    hub_cache,
    pins_file,
    read_pins,
    repository_folder,
    require_downloaded,
    with_retries,
)

log = logging.getLogger(__name__)

Say = Callable[[str], None]
# Smaller files are not worth continuing.
SMALL_BYTES = 8 * 2**20
# What a checkpoint needs to load: its weights as safetensors, configuration, tokeniser, chat template and code.
_OF_CHECKPOINT = re.compile(r"[^/]+\.(safetensors|json|jinja|model|txt|tiktoken|py)")
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
    return with_retries(model, form, lambda: _fetched(model, form, say))


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
    for quant in () if model.file else (model.quant,) if model.quant else USUAL_QUANTS:
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


@dataclass(frozen=True)
class Listing:
    """The files that are a model, at one commit: bytes by name, 0 where the hub does not say."""

    commit: str
    sizes: dict[str, int]

    @property
    def num_bytes(self) -> int:
        return sum(self.sizes.values())


def hub_api() -> Any:
    """Return the client of the hub that `HF_ENDPOINT` names."""
    import huggingface_hub

    return huggingface_hub.HfApi(endpoint=os.environ.get("HF_ENDPOINT"))


def listing(hub: Any, model: HubModel, form: Form) -> Listing:
    """Ask the hub which files are the model: those of an earlier download, else of `model.revision`. Raises
    `ModelFileError` if none are, and errors of the network."""
    pin = read_pins(model.repo).get(model.key)
    revision = model.revision if pin is None else pin.commit
    info = hub.model_info(model.repo, revision=revision, files_metadata=True)
    sizes = {sibling.rfilename: sibling.size or 0 for sibling in info.siblings or ()}
    files = chosen_files(model, form, list(sizes)) if pin is None else pin.files
    return Listing(str(info.sha), {file: sizes.get(file, 0) for file in files})


def _fetched(model: HubModel, form: Form, say: Say) -> Path:
    hub = hub_api()
    listed = listing(hub, model, form)
    # Before the transfer, so that one that is continued later is of the same commit.
    _record(model, Pin(commit=listed.commit, files=list(listed.sizes)))
    say(f"downloading {model} ({listed.num_bytes / 1e9:.2f} GB, commit {listed.commit[:12]}) from {hub.endpoint}")
    started = time.monotonic()
    for file, size in listed.sizes.items():
        if size > SMALL_BYTES:
            _fetch_blob(hub, model.repo, file, listed.commit)
        # Adds the file's name to the snapshot; what is no blob yet is fetched.
        hub.hf_hub_download(model.repo, file, revision=listed.commit, cache_dir=hub_cache())
    say(f"downloaded {model} in {time.monotonic() - started:.0f} s")
    return require_downloaded(model)


def _fetch_blob(hub: Any, repo: str, file: str, commit: str) -> None:
    """Fetch a large file into the cache, from where the last attempt of any process ended.

    The library starts a file from its beginning in every process, which for a model of 40 GB is hours.
    """
    from huggingface_hub.file_download import get_hf_file_metadata, hf_hub_url, http_get
    from huggingface_hub.utils import build_hf_headers  # type: ignore[attr-defined]

    url = hf_hub_url(repo, file, revision=commit, endpoint=hub.endpoint)
    metadata = get_hf_file_metadata(url, endpoint=hub.endpoint)
    if metadata.etag is None or metadata.size is None or metadata.commit_hash != commit:
        return
    folder = repository_folder(repo)
    blob, part = folder / "blobs" / metadata.etag, folder / "blobs" / f"{metadata.etag}.aio.incomplete"
    blob.parent.mkdir(parents=True, exist_ok=True)
    with _locked(hub_cache() / ".locks" / folder.name / f"{metadata.etag}.aio.lock"):
        if blob.exists():
            return
        with part.open("ab") as target:
            there = target.tell()
            http_get(url, target, resume_size=there, headers=build_hf_headers(), expected_size=metadata.size)
        # A crash of the machine may have left zeros in what was there; a large file's tag is its SHA-256.
        if there and re.fullmatch(r"[0-9a-f]{64}", metadata.etag) and _sha256(part) != metadata.etag:
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
