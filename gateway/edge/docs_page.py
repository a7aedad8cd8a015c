"""The API's documentation as one server-rendered page, without scripts, fonts or external resources."""

import asyncio
import base64
import hashlib
import html
from typing import Any

import msgspec
from litestar import Router
from litestar.connection import Request
from litestar.datastructures import ResponseHeader
from litestar.openapi.plugins import JsonRenderPlugin, OpenAPIRenderPlugin

from gateway.edge.asgi import root_of

_STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; color: #1b1f24;
  overflow-wrap: anywhere; }
h1 { font-size: 1.6rem; } code, pre { font: 0.9rem ui-monospace, monospace; }
details { border: 1px solid #d0d7de; border-radius: 6px; margin: 0.6rem 0; padding: 0.5rem 0.9rem; }
summary { cursor: pointer; } .method { display: inline-block; min-width: 3.5rem; font-weight: 600; color: #0550ae; }
table { border-collapse: collapse; width: 100%; } td, th { text-align: left; padding: 0.25rem 0.6rem 0.25rem 0; }
td, th { border-bottom: 1px solid #eaeef2; vertical-align: top; }
@media (prefers-color-scheme: dark) {
  body { background: #0d1117; color: #e6edf3; } details, td, th { border-color: #30363d; } .method { color: #79c0ff; }
}
"""

_STYLE_HASH = base64.b64encode(hashlib.sha256(_STYLE.encode()).digest()).decode()
_HEADERS = {
    "content-security-policy": (
        f"default-src 'none'; style-src 'sha256-{_STYLE_HASH}'; img-src data:; base-uri 'none'; form-action 'none'; "
        "frame-ancestors 'none'"
    ),
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
}


def docs_router(path: str) -> Router:
    """The router of the documentation. Its first request derives the schema, for a quarter of a second, on a thread:
    any caller may ask for it, and the event loop serves the others meanwhile."""
    deriving = asyncio.Lock()

    async def derive(request: Request[Any, Any, Any]) -> None:
        async with deriving:
            await asyncio.to_thread(lambda: request.app.openapi_schema)

    headers = [ResponseHeader(name=name, value=value) for name, value in _HEADERS.items()]
    return Router(path, route_handlers=[], include_in_schema=False, before_request=derive, response_headers=headers)


class DocsPage(OpenAPIRenderPlugin):
    """Renders the OpenAPI schema as plain HTML, once: the schema of an application does not change."""

    def __init__(self) -> None:
        super().__init__(path="/")
        self._page: bytes | None = None

    def render(self, request: Request[Any, Any, Any], openapi_schema: dict[str, Any]) -> bytes:
        """The page, UTF-8."""
        if self._page is None:
            self._page = self._rendered(request, openapi_schema)
        # The page is the same for all, but for the path below which each sees it.
        return self._page.replace(b"<a href='/", b"<a href='" + root_of(request).encode() + b"/")

    def _rendered(self, request: Request[Any, Any, Any], openapi_schema: dict[str, Any]) -> bytes:
        info = openapi_schema["info"]
        operations = [
            _operation(method, path, operation)
            for path, item in sorted(openapi_schema.get("paths", {}).items())
            for method, operation in item.items()
            if isinstance(operation, dict)
        ]
        title = html.escape(f"{info['title']} {info['version']}")
        return (
            f"<!DOCTYPE html><html lang='en'><head><meta charset='utf-8'><title>{title}</title>"
            f"<meta name='viewport' content='width=device-width, initial-scale=1'><link rel='icon' href='data:,'>"
            f"<style>{_STYLE}</style></head>"
            f"<body><h1>{title}</h1><p>{html.escape(info.get('description', ''))}</p>"
            f"<p>The schema: <a href='{html.escape(self.get_openapi_json_route(request))}'>openapi.json</a></p>"
            f"{''.join(operations)}</body></html>"
        ).encode()


class SchemaFile(JsonRenderPlugin):
    """The OpenAPI schema as JSON, with the path below which the client sees the server."""

    def render(self, request: Request[Any, Any, Any], openapi_schema: dict[str, Any]) -> bytes:
        """The file, UTF-8."""
        root = root_of(request)
        return super().render(request, openapi_schema | {"servers": [{"url": root}]} if root else openapi_schema)


def _operation(method: str, path: str, operation: dict[str, Any]) -> str:
    body = operation.get("requestBody", {}).get("content", {}).get("application/json", {}).get("schema", {})
    answer = operation.get("responses", {}).get("200", {}).get("content", {}).get("application/json", {})
    summary, description = (html.escape(operation.get(name) or "") for name in ("summary", "description"))
    return (
        f"<details><summary><span class='method'>{method.upper()}</span> <code>{html.escape(path)}</code> "
        f"{summary}</summary><p>{description}</p>"
        f"{_fields('Request body', body)}{_fields('Answer', answer.get('schema', {}))}</details>"
    )


def _fields(title: str, schema: dict[str, Any]) -> str:
    properties = schema.get("properties")
    if not properties:
        return ""
    required = set(schema.get("required", ()))
    rows = "".join(
        f"<tr><td><code>{html.escape(name)}</code>{' (required)' if name in required else ''}</td>"
        f"<td><code>{html.escape(_type(field))}</code></td></tr>"
        for name, field in properties.items()
    )
    return f"<h4>{title}</h4><table><tr><th>field</th><th>type</th></tr>{rows}</table>"


def _type(field: dict[str, Any]) -> str:
    if "anyOf" in field or "oneOf" in field:
        return " | ".join(dict.fromkeys(map(_type, field.get("anyOf") or field["oneOf"])))
    bounds = {
        key: value for key, value in field.items() if key.startswith(("minimum", "maximum", "exclusive", "min", "max"))
    }
    kind = field.get("type") or ("enum" if "enum" in field else "any")
    if kind == "array":
        kind = f"array of {_type(field.get('items') or {})}"
    elif kind == "object" and "title" in field:
        kind = str(field["title"])
    return f"{kind} {msgspec.json.encode(bounds).decode()}" if bounds else str(kind)
