"""The style sheet and script of the pages, served from the package under names that contain their hash."""

import hashlib
from importlib.resources import files
from typing import Any

from litestar import get
from litestar.params import FromPath
from litestar.response import Response

from gateway.base.errors import ApiError

_TYPES = {"css": "text/css", "js": "text/javascript", "svg": "image/svg+xml"}
_FILES = {
    entry.name: entry.read_bytes()
    for entry in files("gateway.operations.dashboard").joinpath("static").iterdir()
    if entry.name.rsplit(".", 1)[-1] in _TYPES
}
_VERSIONS = {name: hashlib.sha256(content).hexdigest()[:12] for name, content in _FILES.items()}


def url_of(name: str) -> str:
    """Return the URL of the file, with its content hash, so that browsers may cache it for ever."""
    return f"/admin/static/{_VERSIONS[name]}/{name}"


@get("/static/{version:str}/{name:str}", include_in_schema=False)
async def static_file(version: FromPath[str], name: FromPath[str]) -> Response[Any]:
    """Serve a file of the package. An outdated hash gets the current file, uncached."""
    content = _FILES.get(name)
    if content is None:
        raise ApiError(404, f"There is no file {name[:64]!r}.", code="not_found")
    kept = "public, max-age=31536000, immutable" if version == _VERSIONS[name] else "no-store"
    headers = {
        "cache-control": kept,
        "x-content-type-options": "nosniff",
        "content-security-policy": "default-src 'none'; style-src 'self'",
    }
    return Response(content, media_type=_TYPES[name.rsplit(".", 1)[-1]], headers=headers)
