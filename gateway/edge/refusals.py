"""The responses by which a server rejects what is no request of its application, and closes the connection."""

import msgspec

from gateway.base.errors import ApiError, ErrorEnvelope

MAX_HEADERS = 100

_PHRASES = {
    400: b"Bad Request",
    408: b"Request Timeout",
    414: b"URI Too Long",
    429: b"Too Many Requests",
    431: b"Request Header Fields Too Large",
    503: b"Service Unavailable",
}
_RETRYABLE = (408, 429, 503)


def refusal_response(error: ApiError) -> bytes:
    """Return the whole HTTP response by which a server rejects a request and closes."""
    body = msgspec.json.encode(ErrorEnvelope(error.body))
    retry = f"retry-after: {error.retry_after}\r\n".encode() if error.status in _RETRYABLE else b""
    return (
        b"HTTP/1.1 %d %b\r\ncontent-type: application/json\r\ncontent-length: %d\r\n%bconnection: close\r\n\r\n%b"
    ) % (error.status, _PHRASES[error.status], len(body), retry, body)


def too_large(message: str, param: str | None = None) -> ApiError:
    """The 431 of a head, or of what stands around the chunks of a body."""
    return ApiError(431, message, param=param, code="header_fields_too_large")


def too_many_headers() -> ApiError:
    """The 431 of a head with more than `MAX_HEADERS` headers."""
    return too_large(f"The request has more than {MAX_HEADERS} headers.")
