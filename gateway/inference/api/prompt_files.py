"""Files that callers have uploaded here, in prompts: each is read as if its bytes had been given in its place.

A body that names none does not come here.
"""

import base64
import mimetypes
import re
from collections.abc import AsyncIterator, Iterator
from typing import Any, Protocol

import msgspec

from gateway.base.errors import bad_request
from gateway.base.stores.database import reached

_OWN = re.compile(r"file-[0-9a-f]{32}")


class Files(Protocol):
    """Where uploaded files are."""

    async def find(self, tenant: str, file_id: str) -> Any:
        """Return the tenant's file of this id, with its `filename` and its `size` in bytes; None for none."""

    def content(self, file_id: str) -> AsyncIterator[bytes]:
        """Yield the bytes of a file in parts."""


async def with_files(files: Files, tenant: str, body: bytes, most: int) -> bytes:
    """Return a request's JSON with its tenant's files in place of their ids; as it is, if it is none. Ids of others
    stay. Raises `ApiError` 400 for files of more than `most` bytes together, 503 while the database is down."""
    try:
        data = msgspec.json.decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return body
    for holder in list(_holders(data)):
        found = await reached(files.find(tenant, holder["file_id"]))
        if found is None:
            continue
        most -= found.size
        if most < 0:
            raise bad_request(
                f"The files have more bytes than a body may (AIO_BODY_LIMIT): {found.filename!r}.", "file_id"
            )
        content = b"".join([part async for part in files.content(found.file_id)])
        _fill(holder, found.filename, _media_type(found.filename, content), content)
    return msgspec.json.encode(data)


def _holders(data: Any) -> Iterator[dict[str, Any]]:
    """Yield the objects that have the id of a file."""
    for value in data.values() if isinstance(data, dict) else data if isinstance(data, list) else ():
        yield from _holders(value)
    if isinstance(data, dict) and _OWN.fullmatch(str(data.get("file_id"))):
        yield data


def _fill(holder: dict[str, Any], name: str, media_type: str, content: bytes) -> None:
    """Give the file in the form of the API: as the source of an Anthropic block, an image, or a file."""
    del holder["file_id"]
    data, is_text = base64.b64encode(content).decode(), media_type.startswith("text/")
    if holder.get("type") == "file":
        said = content.decode(errors="replace") if is_text else data
        holder |= {"type": "text" if is_text else "base64", "media_type": media_type, "data": said}
    elif holder.get("type") == "input_image":
        holder["image_url"] = f"data:{media_type};base64,{data}"
    else:
        holder |= {"filename": holder.get("filename") or name, "file_data": f"data:{media_type};base64,{data}"}


def _media_type(name: str, content: bytes) -> str:
    guessed = mimetypes.guess_type(name)[0] or "application/octet-stream"
    if content.startswith(b"%PDF"):
        return "application/pdf"
    if guessed.startswith(("image/", "audio/")):
        return guessed
    try:
        content.decode()
    except UnicodeDecodeError:
        return guessed
    return "text/plain"
