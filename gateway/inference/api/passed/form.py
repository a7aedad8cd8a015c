"""A form with files: kept in memory within bounds, each field once, and written again with another model's name."""

import secrets
from collections.abc import Callable, Collection, Iterable
from contextlib import suppress
from typing import Any

import msgspec
from multipart import MultipartSegment

from gateway.base.errors import ApiError, bad_request
from gateway.edge.asgi import FormEvent, HttpRequest, read_form
from gateway.inference.api.passed.endpoints import READ_FIELDS, Form, PassedEndpoint
from inference_core.io.files import JSON_ERRORS
from tiers.dialects.caller_urls import refuse_urls

# OpenAI takes recordings of known speakers, each up to 10 seconds long, as texts.
MOST_PARTS, FIELD_BYTES = 64, 4 * 2**20
MOST_BYTES = 64 * 2**20
"""Of one form; OpenAI takes 25 MB of audio, and 50 MB of an image."""


class PassedForm:
    """The parts of a form of `endpoint`; `read` fills it, and tells `hold` how many bytes have arrived. A field comes
    once: servers differ in which of several they take, and what is billed is what they do."""

    def __init__(self, endpoint: PassedEndpoint, hold: Callable[[int], None]) -> None:
        self._hold = hold
        self.fields: dict[str, str] = {}
        self.files: dict[str, list[bytearray]] = {}
        self._endpoint = endpoint
        self._names: set[str] = set()
        self._size = 0
        self._parts: list[tuple[MultipartSegment, bytearray]] = []

    async def read(self, request: HttpRequest) -> None:
        """Read the form. Raises `ApiError`: 415 for another content type, 400 for a malformed form, 413, 503."""
        length = request.headers.get("content-length", "0")
        if "content-encoding" not in request.headers and (not length.isdecimal() or int(length) > MOST_BYTES):
            raise _too_large()
        await read_form(request, MOST_PARTS, self._take)

    async def _take(self, event: FormEvent) -> None:
        if isinstance(event, MultipartSegment):
            self._check_name(event)
            self._parts.append((event, bytearray()))
            return
        part, content = self._parts[-1]
        if event is not None:
            self._size += len(event)
            if self._size > MOST_BYTES:
                raise _too_large()
            self._hold(self._size)
            content += event
            if not part.filename and len(content) > FIELD_BYTES:
                raise bad_request(f"{part.name[:64]} has more than {FIELD_BYTES} bytes.", part.name[:64], "too_long")
        elif not part.filename:
            self.fields[part.name] = content.decode()
        else:
            self.files.setdefault(part.name, []).append(content)

    def _check_name(self, part: MultipartSegment) -> None:
        """Raise `ApiError` 400 for a second field of a name, and for another spelling of a field that is read."""
        name = part.name
        check_names([f"{name}[]" if part.filename and name in READ_FIELDS else name], READ_FIELDS, self._endpoint)
        if name in self._names and not name.endswith("[]") and name not in self._endpoint.repeated:
            raise bad_request(f"The form has several fields {name[:64]!r}: send one.", name[:64], "repeated_field")
        self._names.add(name)

    def whole(self) -> Form:
        """Return what is read of the form. Raises `ApiError` 400 without its file."""
        file = self._endpoint.file
        if not self.files.keys() & set(file):
            raise bad_request(f"You must provide the parameter {file[0]}, with a file name.", file[0], "missing_file")
        return Form(self.fields, self.files)

    def refuse_urls(self) -> None:
        """Raises `ApiError` 400 for a field with a URL that is not public; one may hold JSON."""
        for part, content in self._parts:
            if not part.filename:
                text: Any = content.decode()
                with suppress(*JSON_ERRORS):
                    text = msgspec.json.decode(text)
                refuse_urls({part.name: text}, "")

    @property
    def texts(self) -> dict[str, list[str]]:
        """The texts that are sent on, by the name of their part: those of fields, and the heads of all parts."""
        texts_by_part: dict[str, list[str]] = {}
        for part, content in self._parts:
            texts = [part.name, *(value for _, value in part.headerlist)]
            texts_by_part.setdefault(part.name, []).extend(texts if part.filename else [*texts, content.decode()])
        return texts_by_part

    def written(self, model: str) -> tuple[str, bytes]:
        """Return the form for `model`: its content type, and its bytes. The heads of parts are written again, so that
        the server reads the same names as this process."""
        boundary = f"aio-{secrets.token_hex(16)}"
        pieces: list[bytes | bytearray] = []
        for part, content in self._parts:
            if part.name == "model":
                continue
            head = f'Content-Disposition: form-data; name="{_quoted(part.name)}"'
            if part.filename:
                head += f'; filename="{_quoted(part.filename)}"'
            if part.header("Content-Type"):
                head += f"\r\nContent-Type: {part.header('Content-Type')}"
            pieces += [f"--{boundary}\r\n{head}\r\n\r\n".encode(), content, b"\r\n"]
        named = f'--{boundary}\r\nContent-Disposition: form-data; name="model"\r\n\r\n{model}\r\n--{boundary}--\r\n'
        return f"multipart/form-data; boundary={boundary}", b"".join([*pieces, named.encode()])


def check_names(names: Iterable[str], read: Collection[str], endpoint: PassedEndpoint) -> None:
    """Raise `ApiError` 400 for another spelling of a field that is `read`, which some servers take for it, as Go's JSON
    does with `N`; and for a field that a server may take instead of what is counted."""
    for name in names:
        plain = name.partition("[")[0].strip().lower()
        if plain in read and name != plain:
            raise bad_request(f"Send {plain} as one plain field of this name.", plain, "invalid_value")
        if name in endpoint.refused:
            message = f"{name} is not passed on: a server may take it instead of what is counted. Leave it out."
            raise bad_request(message, name, "unsupported_parameter")


def _quoted(name: str) -> str:
    """Return a name as browsers write it into the head of a part."""
    return name.replace('"', "%22").replace("\r", "%0D").replace("\n", "%0A")


def _too_large() -> ApiError:
    return ApiError(413, f"The form has more than {MOST_BYTES} bytes.", param="file", code="file_too_large")
