"""`/v1/files`: callers' stored files, above all the input and output of batches, in OpenAI's and Anthropic's forms.

An upload is a form with one file, read while it arrives: its fields are kept, the file is passed on in pieces.
"""

import mimetypes
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import msgspec
from litestar import delete, get, post
from litestar.params import FromPath
from litestar.response import Response, Stream
from multipart import MultipartSegment

from gateway.base.errors import ApiError, bad_request
from gateway.base.inference_request import Caller
from gateway.base.numbers import whole_number, whole_seconds
from gateway.base.stores.database import reached
from gateway.batches.file_store import FileWriter, Owner, Purpose, QuotaError, StoredFile
from gateway.batches.jobs import jobs_of
from gateway.edge.asgi import FormEvent, HttpRequest, read_form
from gateway.edge.openapi import describe, describe_form
from gateway.inference.api.list_queries import is_id, not_found, owned_query
from gateway.inference.api.models import is_anthropics
from gateway.inference.service import serving_of
from gateway.tenancy.guard import caller_of
from quality.store.database import MOST_INTEGER

FILE = "file"
# Most bytes of a form besides its file.
MOST_PARTS = 16
FIELD_BYTES = 1024
NAME_BYTES = 512
# What a form may hold besides its file: fields, and the heads of all parts.
_FORM_BYTES = 1 << 16


class UploadedForm:
    """`fields` by name and `filename`, once `read` has ended; the file's bytes go to `writer`.

    `most`: bytes that the file may have.
    """

    def __init__(self, writer: FileWriter, most: int) -> None:
        self.fields: dict[str, str] = {}
        self.filename: str | None = None
        self._writer, self._most = writer, most

    async def read(self, request: HttpRequest) -> None:
        """Read the form. Raises `ApiError`: 415 for another content type, 400 if malformed, 413 if too large."""
        await read_form(request, MOST_PARTS, self._take)
        if self.filename is None:
            raise bad_request("You must provide the parameter file, with a file name.", FILE, "missing_file")

    async def _take(self, event: FormEvent) -> None:
        if isinstance(event, MultipartSegment):
            self._begin(event)
        elif event is not None:
            await self._add(bytes(event))
        elif self._name != FILE:
            self.fields[self._name] = self._value.decode()

    def _begin(self, part: MultipartSegment) -> None:
        self._name, self._value = part.name, bytearray()
        if part.name in self.fields or (part.name == FILE and self.filename is not None):
            raise bad_request(f"The form gives {part.name[:64]} twice.", part.name[:64], "invalid_form")
        if part.name == FILE:
            self.filename = _name_of(part)

    async def _add(self, content: bytes) -> None:
        if self._name == FILE:
            if self._writer.size + len(content) > self._most:
                raise _too_large(self._most)
            await self._writer.write(content)
            return
        self._value += content
        if len(self._value) > FIELD_BYTES:
            raise bad_request(f"{self._name[:64]} has more than {FIELD_BYTES} bytes.", self._name[:64], "too_long")


def declared_size(request: HttpRequest, most: int) -> int:
    """Return how many bytes the form's file has at least, by the length of the body; 0 if that is not declared.

    Raises `ApiError` 413 if it has more than `most`, before any of it is read.
    """
    length = request.headers.get("content-length", "0")
    size = whole_number(length, "content-length", 0, MOST_INTEGER) - _FORM_BYTES
    if size > most:
        raise _too_large(most)
    return max(size, 0)


def _too_large(most: int) -> ApiError:
    return ApiError(413, f"The file has more than {most} bytes (AIO_FILE_LIMIT).", param=FILE, code="file_too_large")


def _name_of(part: MultipartSegment) -> str:
    """Only displayed: no path is made of it."""
    name = part.filename or ""
    if not name or len(name.encode(errors="replace")) > NAME_BYTES or any(not c.isprintable() for c in name):
        raise bad_request(
            f"The file needs a name: 1 to {NAME_BYTES} bytes of printable text.", FILE, "invalid_filename"
        )
    return name


def unused_fields(form: UploadedForm, allowed: Mapping[str, object] | frozenset[str]) -> None:
    """Raises `ApiError` 400 for the first field that is not `allowed`."""
    for name in form.fields:
        if name not in allowed:
            raise bad_request(f"Unrecognized request argument supplied: {name[:64]}.", name[:64], "unknown_parameter")


# OpenAI's purposes that apply here: the last three are for prompts.
PURPOSES: tuple[Purpose, ...] = ("batch", "user_data", "assistants", "vision")
MOST_LISTED = 10_000
# OpenAI's limits of `expires_after[seconds]`.
LEAST_SECONDS, MOST_SECONDS = 3600, 2_592_000
_ANCHOR, _SECONDS = "expires_after[anchor]", "expires_after[seconds]"


class FileUpload(msgspec.Struct, frozen=True, kw_only=True):
    """The fields of the form."""

    file: str
    """The file."""
    purpose: str


class FileObject(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A file as OpenAI shows it; times are UTC epoch seconds."""

    id: str
    object: str
    bytes: int
    created_at: int
    filename: str
    purpose: str
    status: str
    expires_at: int | None = None


class FileList(msgspec.Struct, frozen=True, kw_only=True):
    """A page of files."""

    object: str = "list"
    data: list[FileObject]
    first_id: str | None
    last_id: str | None
    """The value of `after` for the next page."""
    has_more: bool
    next_page: str | None
    """The value of `page` for the next page, if there is one."""


class FileDeleted(msgspec.Struct, frozen=True, kw_only=True):
    """The file is deleted."""

    id: str
    object: str = "file"
    deleted: bool = True
    type: str = "file_deleted"


@post("/files", status_code=200, operation_class=describe_form(FileUpload, FileObject), summary="Upload a file")
async def upload_file(request: HttpRequest) -> Response[Any]:
    """A form of `purpose` (batch; user_data, assistants, vision for prompts), `file`, and optionally
    `expires_after[anchor]` (created_at) and `expires_after[seconds]`."""
    jobs, file_limit = jobs_of(request), serving_of(request).settings.file_limit
    size = declared_size(request, file_limit)
    try:
        writer = await reached(jobs.files.begin_upload(owner_of(caller_of(request)), size))
        async with writer:
            form = UploadedForm(writer, file_limit)
            await reached(form.read(request))
            if is_anthropics(request):
                form.fields.setdefault("purpose", "user_data")
            stored = await reached(_finished(form, writer))
    except QuotaError as error:
        said = f"Quota exceeded: {error} (AIO_FILES_QUOTA). Delete some files."
        raise ApiError(413, said, param=FILE, code="storage_limit_exceeded") from None
    return Response(_shown(stored, request), media_type="application/json")


@get("/files", operation_class=describe(None, FileList), summary="List files")
async def list_files(request: HttpRequest) -> Response[Any]:
    """Newest first. Query: `after`, `limit` (1 to 10,000), `order` (asc, desc), `purpose`."""
    most, after = MOST_LISTED, next((name for name in ("page", "after_id") if name in request.query_params), "after")
    query = owned_query(request, most=most, default=most, order=True, purpose=True, ignored=("beta",), after_name=after)
    store = jobs_of(request).files
    tenant = caller_of(request).tenant
    files, more = await reached(
        store.page(tenant, query.purpose, after=query.after, limit=query.limit, ascending=query.ascending)
    )
    first, last = (files[0].file_id, files[-1].file_id) if files else (None, None)
    page = {"first_id": first, "last_id": last, "has_more": more, "next_page": last if more else None}
    data = [_shown(file, request) for file in files]
    return Response({"object": "list", "data": data} | page, media_type="application/json")


@get("/files/{file_id:str}", operation_class=describe(None, FileObject), summary="Show a file")
async def show_file(request: HttpRequest, file_id: FromPath[str]) -> Response[Any]:
    """A file's metadata; another tenant's file is not found."""
    return Response(_shown(await _file(request, file_id), request), media_type="application/json")


@get(
    "/files/{file_id:str}/content",
    media_type="application/octet-stream",
    operation_class=describe(None),
    summary="Download a file",
)
async def show_content(request: HttpRequest, file_id: FromPath[str]) -> Stream:
    """The bytes as they were sent."""
    stored = await _file(request, file_id)
    return Stream(
        jobs_of(request).files.content(stored.file_id),
        media_type="application/octet-stream",
        headers={"x-content-type-options": "nosniff", "content-disposition": "attachment"},
    )


@delete("/files/{file_id:str}", status_code=200, operation_class=describe(None, FileDeleted), summary="Delete a file")
async def delete_file(request: HttpRequest, file_id: FromPath[str]) -> Response[Any]:
    """Immediate and permanent. Batches that have read it go on."""
    gone = is_id(file_id) and await reached(jobs_of(request).files.delete(caller_of(request).tenant, file_id))
    if not gone:
        raise not_found("file", file_id)
    return Response(FileDeleted(id=file_id), media_type="application/json")


def owner_of(caller: Caller) -> Owner:
    return Owner(caller.tenant, caller.key_id)


def _shown(stored: StoredFile, request: HttpRequest) -> FileObject | dict[str, Any]:
    """In OpenAI's form, or in Anthropic's to its client."""
    if is_anthropics(request):
        kind = mimetypes.guess_type(stored.filename)[0] or "application/octet-stream"
        made, ends = (time and datetime.fromtimestamp(time, UTC) for time in (stored.created_at, stored.expires_at))
        said = {"type": "file", "id": stored.file_id, "filename": stored.filename, "mime_type": kind}
        return said | {"size_bytes": stored.size, "created_at": made, "expires_at": ends, "downloadable": True}
    return FileObject(
        id=stored.file_id,
        object="file",
        bytes=stored.size,
        created_at=int(stored.created_at),
        filename=stored.filename,
        purpose=stored.purpose,
        status="processed",
        expires_at=whole_seconds(stored.expires_at),
    )


async def _finished(form: UploadedForm, writer: FileWriter) -> StoredFile:
    unused_fields(form, frozenset(("purpose", _ANCHOR, _SECONDS)))
    purpose = next((name for name in PURPOSES if name == form.fields.get("purpose")), None)
    if purpose is None:
        allowed = ", ".join(PURPOSES)
        sent = form.fields.get("purpose")
        said = "You must provide purpose" if sent is None else f"Invalid purpose {sent[:64]!r}"
        raise bad_request(f"{said}: allowed are {allowed}.", "purpose", "invalid_value")
    if not writer.size:
        raise bad_request("The file is empty.", FILE, "empty_file")
    return await writer.finish(purpose, form.filename or FILE, _expires_in(form.fields))


def _expires_in(fields: dict[str, str]) -> float | None:
    anchor, seconds = fields.get(_ANCHOR), fields.get(_SECONDS)
    if anchor is None and seconds is None:
        return None
    if anchor != "created_at":
        raise bad_request(f"{_ANCHOR} must be created_at.", _ANCHOR, "invalid_value")
    return float(whole_number(seconds or "", _SECONDS, LEAST_SECONDS, MOST_SECONDS))


async def _file(request: HttpRequest, file_id: str) -> StoredFile:
    tenant = caller_of(request).tenant
    file = await reached(jobs_of(request).files.find(tenant, file_id)) if is_id(file_id) else None
    if file is None:
        raise not_found("file", file_id)
    return file
