"""What the head of a request may have, and how it is counted while it arrives in pieces."""

from collections.abc import Sequence

from gateway.base.errors import ApiError

MAX_HEADERS = 100
# Bytes of a line that are kept to name the header in an error message.
_NAME_BYTES = 64


def too_large(message: str, param: str | None = None) -> ApiError:
    """The 431 of a head, or of what stands around the chunks of a body."""
    return ApiError(431, message, param=param, code="header_fields_too_large")


def too_many_headers() -> ApiError:
    """The 431 of a head with more than `MAX_HEADERS` headers."""
    return too_large(f"The request has more than {MAX_HEADERS} headers.")


class HeadBounds:
    """A head may have `head` bytes, including line ends and empty lines before it, its `request_line` an eighth of
    them, one `header` a quarter. `counted`: bytes of the head being received that came in earlier pieces."""

    __slots__ = ("_in_request_line", "_line", "_line_begins", "counted", "head", "header", "request_line")

    def __init__(self, head: int) -> None:
        self.head, self.header, self.request_line = head, head // 4, head // 8
        self.forget()

    def forget(self) -> None:
        """Begin with another head."""
        # Of the last line: its bytes so far, and how it starts.
        self.counted = self._line = 0
        self._in_request_line, self._line_begins = True, b""

    def begin_within(self) -> None:
        """Begin with a head that started in mid-piece: where is unknown, and whether its first line has ended."""
        self._in_request_line, self.counted = False, 1

    def count(self, data: bytes, start: int, end: int, url: bytes, headers: int) -> int:
        """Count a piece of a head with so much of its `url` and so many `headers`; return how many bytes may be parsed
        next. Raises `ApiError` if the head must be too long."""
        self.counted += end - start
        if self._in_request_line and not self._line:
            start = end - len(data[start:end].lstrip(b"\r\n"))
        newline = data.rfind(b"\n", start, end)
        if newline < 0:
            self._line += end - start
            if len(self._line_begins) < _NAME_BYTES:
                self._line_begins += data[start : min(start + _NAME_BYTES, end)]
        else:
            self._in_request_line = False
            self._line = end - newline - 1
            self._line_begins = data[newline + 1 : min(newline + 1 + _NAME_BYTES, end)]
        limit = self.request_line if self._in_request_line else self.header
        if self._line >= limit:
            if self._in_request_line or len(url) >= self.request_line:
                raise self._too_long_request_line()
            name, colon, _ = self._line_begins.partition(b":")
            raise self._too_long_header(name if colon else b"")
        if headers > MAX_HEADERS:
            raise too_many_headers()
        if self.counted >= self.head:
            raise self._too_long_head()
        return min(self.request_line, limit - self._line, self.head - self.counted)

    def measure(self, url: bytes, headers: Sequence[tuple[bytes, bytes]]) -> None:
        """Measure a parsed head. Raises `ApiError`."""
        head = len(url)
        if head > self.request_line:
            raise self._too_long_request_line()
        for name, value in headers:
            # Including a colon, a space and a line end.
            line = len(name) + len(value) + 4
            if line > self.header:
                raise self._too_long_header(name)
            head += line
        if head > self.head:
            raise self._too_long_head()

    def _too_long_request_line(self) -> ApiError:
        message = f"The request line has more than {self.request_line} bytes (an eighth of AIO_HEAD_LIMIT)."
        return ApiError(414, message, code="uri_too_long")

    def _too_long_header(self, name: bytes) -> ApiError:
        param = name[:_NAME_BYTES].decode("ascii", "replace").lower()
        message = f"The header {param!r} has more than {self.header} bytes (a quarter of AIO_HEAD_LIMIT)."
        return too_large(message, param or None)

    def _too_long_head(self) -> ApiError:
        return too_large(f"The head has more than {self.head} bytes (AIO_HEAD_LIMIT).")
