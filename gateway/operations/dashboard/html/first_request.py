"""A first request to this gateway as a shell command, to copy from a page."""

import re
import shlex

import msgspec

from gateway.edge.asgi import HttpRequest
from gateway.inference.service import serving_of
from gateway.tenancy.access.guard import access_of, site_of

# What stands in the page as a command must not be able to hold one.
_ADDRESS = re.compile(r"https?://[A-Za-z0-9.:\[\]_-]+\Z")
QUESTION = {"model": "auto", "messages": [{"role": "user", "content": "Hello!"}]}


def first_request(request: HttpRequest) -> str:
    """Return the command; it names a key in the environment where callers need one."""
    key = ' -H "Authorization: Bearer $AIO_API_KEY"' if access_of(request).tenancy.directory.asks_for_keys else ""
    question = shlex.quote(msgspec.json.encode(QUESTION).decode())
    return f"curl {address(request)}/v1/chat/completions -H 'Content-Type: application/json'{key} -d {question}"


def address(request: HttpRequest) -> str:
    """Return the address by which the client reached us."""
    url, settings = site_of(request), serving_of(request).settings
    return url if _ADDRESS.match(url) else f"http://{settings.host}:{settings.port}"
