"""A form with one file, read while it arrives: its fields are kept, the file is passed on in pieces."""

from collections.abc import AsyncIterator, Mapping

from multipart import MultipartError, MultipartSegment, PushMultipartParser

from gateway.base.errors import ApiError, ClientGoneError, bad_request
from gateway.base.numbers import whole_number
from gateway.batches.file_store import FileWriter
from gateway.edge.http_request import HttpRequest
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
        """Read the form. Raises `ApiError`: 415 for another content type, 400 for a malformed form, 413 for a too large
        file."""
        kind, options = request.content_type
        boundary = options.get("boundary")
        if kind != "multipart/form-data" or not boundary:
            raise ApiError(415, "Send the file as multipart/form-data with a boundary.")
        try:
            with PushMultipartParser(boundary, max_segment_count=MOST_PARTS, strict=True) as parser:
                async for chunk in _chunks(request):
                    await self._take(parser, chunk)
                    if parser.closed:
                        break
        except (MultipartError, UnicodeError, LookupError) as error:
            raise bad_request(f"The form cannot be read: {error}.", None, "invalid_form") from None
        if self.filename is None:
            raise bad_request("You must provide the parameter file, with a file name.", FILE, "missing_file")

    async def _take(self, parser: PushMultipartParser, chunk: bytes) -> None:
        for event in parser.parse(chunk):
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


async def _chunks(request: HttpRequest) -> AsyncIterator[bytes]:
    """Yield the pieces of the body."""
    while True:
        event = await request.receive()
        if event["type"] == "http.disconnect":
            raise ClientGoneError
        if event["type"] != "http.request":
            continue
        if body := event["body"]:
            yield body
        if not event["more_body"]:
            return


def _name_of(part: MultipartSegment) -> str:
    """Only displayed: no path is made of it."""
    name = part.filename or ""
    if not name or len(name.encode(errors="replace")) > NAME_BYTES or any(not c.isprintable() for c in name):
        raise bad_request(
            f"The file needs a name: 1 to {NAME_BYTES} bytes of printable text.", FILE, "invalid_filename"
        )
    return name


def unused_fields(form: UploadedForm, known: Mapping[str, object] | frozenset[str]) -> None:
    """Raises `ApiError` 400 for the first field that is not `known`."""
    for name in form.fields:
        if name not in known:
            raise bad_request(f"Unrecognized request argument supplied: {name[:64]}.", name[:64], "unknown_parameter")
