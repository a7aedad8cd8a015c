"""Reads of a Hugging Face model what says what it is, and none of its weights: settings, tokeniser and headers.

The result is a folder or file that loaders open as if it were downloaded: weights are holes of a sparse file.
"""

import re
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from inference_core.errors import ModelFileError
from inference_core.extras import require_extra
from inference_core.loaders.decoder_tensors import decoder_tensors
from inference_core.loaders.gguf_format.gguf_config import ROPE_TENSORS
from inference_core.loaders.gguf_format.gguf_header import GGUFHeader, HeaderEndsEarlyError
from inference_core.loaders.hub_download import hub_api, listing
from inference_core.loaders.hub_model import Form, HubModel, with_retries
from inference_core.loaders.huggingface.hf_config import read_config
from inference_core.loaders.huggingface.safetensors_file import MAX_HEADER_BYTES, Entry, SafetensorsFile

# The files of a folder that its loaders read in whole.
SETTINGS = (
    "config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json", "chat_template.jinja",
    "model.safetensors.index.json",
)  # fmt: skip
MAX_SETTINGS_BYTES = 256 * 2**20
# A GGUF header does not say how long it is: it is read in pieces until it is whole.
FIRST_PIECE = 256 * 2**10
LARGEST_PIECE = 2**20
_AT_ONCE = 8
_TIMEOUT_SECONDS = 30
# Tensors that say how others are stored: their shape (compressed-tensors), their table and settings (bitsandbytes).
_DESCRIBING = re.compile(r"\.(weight_shape|shape|weight\.quant_map|weight\.quant_state\.\w+)$")


@dataclass(frozen=True)
class HubHeaders:
    """Headers of a model's files on a hub, read without the weights."""

    path: Path
    """The path that loaders open."""
    commit: str
    download_bytes: int
    """Size of all files of a download."""
    read_bytes: int
    """Bytes that were read."""


def fetch_headers(model: HubModel, form: Form, folder: Path) -> HubHeaders:
    """Write into the empty `folder` what `Checkpoint` and `Tokenizer` read of the model when they open it.

    Of tensors only these are right: `rope_freqs` of a GGUF file, and those that say how others are stored. A bias that
    the architecture has is not zero; all else reads as zeros. Raises `ModelFileError` that says what is wrong and what
    to do, and `MissingExtraError`.
    """
    require_extra("hub", f"model '{model}' is a Hugging Face id, which")
    return with_retries(model, form, lambda: _fetched(model, form, folder))


def _fetched(model: HubModel, form: Form, folder: Path) -> HubHeaders:
    hub = hub_api()
    listed = listing(hub, model, form)
    remote = _Remote(hub.endpoint, model.repo, listed.commit)
    first = next(iter(listed.sizes))
    if first.endswith(".gguf"):
        path = folder / Path(first).name
        _gguf(remote, first, path)
    else:
        path = folder
        for name in listed.sizes:
            if name in SETTINGS:
                (folder / name).write_bytes(remote.whole(name))
        weights = [name for name in listed.sizes if name.endswith(".safetensors")]
        # Several at once: a large model has a hundred files.
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            list(pool.map(lambda name: _safetensors(remote, name, folder / name), weights))
        _mark_biases(folder, weights)
    return HubHeaders(path, listed.commit, listed.num_bytes, remote.read_bytes)


def _safetensors(remote: "_Remote", name: str, path: Path) -> None:
    head, size = remote.span(name, 0, 8)
    length = int.from_bytes(head, "little")
    if length > min(size - 8, MAX_HEADER_BYTES):
        raise ModelFileError(f"{name}: its header claims {length} of {size} bytes; it is not a safetensors file")
    with path.open("wb") as file:
        file.write(head)
        file.write(remote.span(name, 8, 8 + length)[0])
        file.truncate(size)
    held = SafetensorsFile(path).entries.items()
    describing = [entry.data_offsets for tensor, entry in held if _DESCRIBING.search(tensor)]
    with path.open("r+b") as file:
        for begin, end in _joined(describing):
            start = 8 + length + begin
            file.seek(start)
            file.write(remote.span(name, start, 8 + length + end)[0])


def _joined(spans: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Spans of bytes in order, adjacent ones as one: writers sort tensors by kind, so that those of a kind adjoin."""
    joined: list[tuple[int, int]] = []
    for begin, end in sorted(spans):
        if joined and joined[-1][1] == begin:
            joined[-1] = (joined[-1][0], end)
        else:
            joined.append((begin, end))
    return joined


def _mark_biases(folder: Path, weights: list[str]) -> None:
    """Make the biases that the architecture has other than zero: a quantised layer's bias of zeros counts as none."""
    try:
        wanted = {name for name in decoder_tensors(read_config(folder)) if name.endswith(".bias")}
    except ModelFileError:
        return  # reported when it is opened
    for path in (folder / name for name in weights):
        held: dict[str, Entry] = SafetensorsFile(path).entries
        with path.open("r+b") as file:
            length = int.from_bytes(file.read(8), "little")
            for name in wanted & held.keys():
                file.seek(8 + length + held[name].data_offsets[0])
                file.write(b"\x01")


def _gguf(remote: "_Remote", name: str, path: Path) -> None:
    """Read pieces until the header is whole, then the factors that are stored as a tensor."""
    read, size, piece = 0, 1, FIRST_PIECE
    header = None
    with path.open("wb") as file:
        while header is None:
            content, size = remote.span(name, read, read + piece)
            file.write(content)
            file.flush()
            read, piece = read + len(content), min(2 * piece, LARGEST_PIECE)
            try:
                header = GGUFHeader(path, size)
            except HeaderEndsEarlyError:
                if read >= min(size, MAX_HEADER_BYTES):
                    raise
        file.truncate(size)
        for factors in (header.tensors[tensor] for tensor in ROPE_TENSORS if tensor in header.tensors):
            file.seek(factors.offset)
            file.write(remote.span(name, factors.offset, factors.offset + factors.nbytes)[0])


class _Remote:
    """The files of a repository at a commit; `read_bytes` counts what was read of them."""

    def __init__(self, endpoint: str, repo: str, commit: str) -> None:
        from huggingface_hub import hf_hub_url
        from huggingface_hub.utils import build_hf_headers  # type: ignore[attr-defined]

        self._url: Callable[[str], str] = lambda name: hf_hub_url(repo, name, revision=commit, endpoint=endpoint)
        self._headers = {**build_hf_headers(), "accept-encoding": "identity"}
        self._counts: list[int] = []  # appended to by several threads

    @property
    def read_bytes(self) -> int:
        return sum(self._counts)

    def whole(self, name: str) -> bytes:
        """Return a file of settings."""
        with self._opened(name, {}) as response:
            content = _read(response, MAX_SETTINGS_BYTES + 1)
        if len(content) > MAX_SETTINGS_BYTES:
            raise ModelFileError(f"{name} has more than {MAX_SETTINGS_BYTES} bytes; it is no file of settings")
        self._counts.append(len(content))
        return content

    def span(self, name: str, begin: int, end: int) -> tuple[bytes, int]:
        """Return the bytes `begin` to `end` of a file, or to its end, and the size of the whole file."""
        with self._opened(name, {"range": f"bytes={begin}-{end - 1}"}) as response:
            content_range = re.fullmatch(r"bytes (\d+)-(\d+)/(\d+)", response.headers.get("content-range", ""))
            if response.status_code != 206 or content_range is None or int(content_range[1]) != begin:
                raise ModelFileError(
                    f"{response.url} cannot be read in part (status {response.status_code}); download the model instead"
                )
            content = _read(response, end - begin)
        size = int(content_range[3])
        if len(content) != min(end, size) - begin:
            raise OSError(f"{name} ended after {len(content)} bytes of {min(end, size) - begin}")
        self._counts.append(len(content))
        return content, size

    @contextmanager
    def _opened(self, name: str, headers: dict[str, str]) -> Iterator[Any]:
        """Open a response whose body is still to be read; closing it early leaves the rest unread."""
        from huggingface_hub.utils import get_session, hf_raise_for_status  # type: ignore[attr-defined]

        session: Any = get_session()
        asked = {"headers": {**self._headers, **headers}, "timeout": _TIMEOUT_SECONDS}
        # Versions from 1.0 on speak httpx, earlier ones requests.
        is_httpx = callable(session.stream)
        opened = session.stream("GET", self._url(name), **asked) if is_httpx else None
        with opened or session.get(self._url(name), stream=True, **asked) as response:
            if response.status_code >= 400 and is_httpx:
                response.read()
            hf_raise_for_status(response)
            yield response


def _read(response: Any, most: int) -> bytes:
    """Return at most `most` bytes of the body."""
    content = bytearray()
    pieces = response.iter_bytes() if hasattr(response, "iter_bytes") else response.iter_content(2**16)
    for piece in pieces:
        content += piece
        if len(content) >= most:
            break
    return bytes(content[:most])
