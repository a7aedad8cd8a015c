"""Files that callers have uploaded here, in prompts: each is read as if its bytes had been given in its place.

A body that names none does not come here.
"""

import mimetypes
import re
from collections.abc import AsyncIterator
from typing import Any, Protocol

import msgspec

from gateway.base.errors import bad_request
from gateway.base.stores.database import reached
from tiers.dialects.client_parts import FILE_ID, file_holders, fill_file

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
    for holder, file_id in list(file_holders(data)):
        file = await reached(files.find(tenant, file_id)) if _OWN.fullmatch(file_id) else None
        if file is None:
            continue
        most -= file.size
        if most < 0:
            raise bad_request(
                f"The files have more bytes than a body may (AIO_BODY_LIMIT): {file.filename!r}.", FILE_ID
            )
        content = b"".join([part async for part in files.content(file.file_id)])
        fill_file(holder, file.filename, _media_type(file.filename, content), content)
    return msgspec.json.encode(data)


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
