"""A form with files, kept in memory within bounds and written again with another model's name."""

import secrets
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager

from multipart import MultipartError, MultipartSegment, PushMultipartParser

from gateway.base.errors import ApiError, ClientGoneError, bad_request
from gateway.edge.asgi import HttpRequest
from gateway.inference.api.passed.endpoints import FormFields

MOST_PARTS, FIELD_BYTES = 64, 128 * 1024
MOST_BYTES = 64 * 2**20
"""Of one form; OpenAI takes 25 MB of audio, and 50 MB of an image."""
MOST_HELD_BYTES = 2 * MOST_BYTES
"""Of all forms that a process holds, each of which it copies once or twice."""


class _Held:
    bytes = 0


@contextmanager
def held_room(size: int) -> Iterator[None]:
    """Hold room for a form of `size` bytes. Raises `ApiError` 503 if there is none now."""
    if _Held.bytes + size > MOST_HELD_BYTES:
        raise ApiError(503, "Too many files are being passed through. Try again later.", code="overloaded")
    _Held.bytes += size
    try:
        yield
    finally:
        _Held.bytes -= size


def announced_size(request: HttpRequest) -> int:
    """Return the most bytes that the body can have. Raises `ApiError` 413 for more than a form may have."""
    length = request.headers.get("content-length")
    if length is None or "content-encoding" in request.headers:
        return MOST_BYTES
    if not length.isdecimal() or int(length) > MOST_BYTES:
        raise _too_large()
    return int(length)


class PassedForm:
    """The parts of a form; `read` fills it."""

    def __init__(self) -> None:
        self.fields: dict[str, str] = {}
        self.files: dict[str, int] = {}
        self._parts: list[tuple[MultipartSegment, bytearray]] = []

    async def read(self, request: HttpRequest) -> None:
        """Read the form. Raises `ApiError`: 415 for another content type, 400 for a malformed form, 413."""
        kind, options = request.content_type
        boundary = options.get("boundary")
        if kind != "multipart/form-data" or not boundary:
            raise ApiError(415, "Send the file as multipart/form-data with a boundary.")
        size = 0
        try:
            with PushMultipartParser(boundary, max_segment_count=MOST_PARTS, strict=True) as parser:
                async for chunk in _chunks(request):
                    size += len(chunk)
                    if size > MOST_BYTES:
                        raise _too_large()
                    for event in parser.parse(chunk):
                        self._take(event)
                    if parser.closed:
                        break
        except (MultipartError, UnicodeError, LookupError) as error:
            raise bad_request(f"The form cannot be read: {error}.", None, "invalid_form") from None

    def _take(self, event: MultipartSegment | bytes | bytearray | None) -> None:
        if isinstance(event, MultipartSegment):
            self._parts.append((event, bytearray()))
            return
        part, content = self._parts[-1]
        if event is not None:
            content += event
            if part.filename is None and len(content) > FIELD_BYTES:
                raise bad_request(f"{part.name[:64]} has more than {FIELD_BYTES} bytes.", part.name[:64], "too_long")
        elif part.filename is None:
            self.fields[part.name] = content.decode()
        else:
            self.files[part.name] = self.files.get(part.name, 0) + len(content)

    def read_fields(self, file: tuple[str, ...]) -> FormFields:
        """Return what is read of the form, whose file is one of `file`. Raises `ApiError` 400 without one."""
        if not self.files.keys() & set(file):
            raise bad_request(f"You must provide the parameter {file[0]}, with a file name.", file[0], "missing_file")
        return FormFields(self.fields, sum(self.files.values()))

    @property
    def texts(self) -> dict[str, list[str]]:
        """The texts that are sent on, by the name of their part: those of fields, and the heads of all parts."""
        found: dict[str, list[str]] = {}
        for part, content in self._parts:
            texts = [part.name, *(value for _, value in part.headerlist)]
            found.setdefault(part.name, []).extend(texts if part.filename is not None else [*texts, content.decode()])
        return found

    def written(self, model: str) -> tuple[str, bytes]:
        """Return the form for `model`: its content type, and its bytes."""
        boundary = f"aio-{secrets.token_hex(16)}"
        pieces: list[bytes | bytearray] = []
        for part, content in self._parts:
            if part.name == "model":
                continue
            head = "".join(f"{name}: {value}\r\n" for name, value in part.headerlist)
            pieces += [f"--{boundary}\r\n{head}\r\n".encode(), content, b"\r\n"]
        named = f'--{boundary}\r\nContent-Disposition: form-data; name="model"\r\n\r\n{model}\r\n--{boundary}--\r\n'
        return f"multipart/form-data; boundary={boundary}", b"".join([*pieces, named.encode()])


def _too_large() -> ApiError:
    return ApiError(413, f"The form has more than {MOST_BYTES} bytes.", param="file", code="file_too_large")


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
        if not event.get("more_body", False):
            return
