"""Pages as HTML: templates with autoescape, headers that let the browser run only our own files, those files under
names that contain their hash, and the links of the navigation."""

import asyncio
import hashlib
import http
import logging
import math
import re
import shlex
from collections.abc import Mapping
from datetime import UTC, datetime
from importlib.resources import files
from typing import Any
from urllib.parse import quote, unquote, urlencode

import msgspec
from jinja2 import Environment, PackageLoader, StrictUndefined
from litestar import get
from litestar.connection import Request
from litestar.datastructures import Cookie
from litestar.exceptions import HTTPException
from litestar.handlers import HTTPRouteHandler
from litestar.params import FromPath
from litestar.response import Response

from gateway.base.errors import ApiError, as_api_error, request_id_of
from gateway.base.inference_request import CALLER, KEYLESS
from gateway.edge.asgi import HttpRequest, root_of
from gateway.edge.proxies import authority_of, hosts_of
from gateway.inference.service import Serving, serving_of
from gateway.operations.dashboard.html import charts
from gateway.operations.running import operations_of
from gateway.telemetry.slo import Quantiles
from gateway.tenancy.admin_guard import NotSignedInError, session_token
from gateway.tenancy.guard import access_of, caller_of, site_of
from gateway.tenancy.users.sessions import csrf_of
from tiers.errors import TierError

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


OPT = "dashboard_pages"


class Page(msgspec.Struct, frozen=True, kw_only=True):
    """A page at `/admin` + `path`, with its handlers, whose paths are also relative to `/admin`."""

    title: str
    path: str
    handlers: tuple[HTTPRouteHandler, ...]
    role: str = "viewer"
    """The role that sees the link; handlers check permissions themselves."""


class Link(msgspec.Struct, frozen=True):
    """An entry of the navigation, as the template draws it."""

    title: str
    path: str
    here: bool


def links(
    pages: tuple[Page, ...], path: str, scopes: frozenset[str], hidden: frozenset[str] = frozenset()
) -> list[Link]:
    """Return the links that a caller with `scopes` sees on the page at `path`, without the pages at `hidden` paths."""
    inner = path.removeprefix("/admin").rstrip("/")
    seen = [page for page in pages if page.role in scopes or "admin" in scopes]
    shown = [page for page in seen if page.path not in hidden]
    return [Link(page.title, f"/admin{page.path}", _is_here(page.path, inner)) for page in shown]


def _is_here(page: str, inner: str) -> bool:
    page = page.rstrip("/")
    return inner == page or (page != "" and inner.startswith(f"{page}/"))


log = logging.getLogger(__name__)

HOME = "/admin"
LOGIN = "/admin/login"
NOTICE = "aio_notice"
HEADERS = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
        "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    ),
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    # Pages show live data to a signed-in user: no cache may keep them.
    "cache-control": "no-store",
}


def page(request: HttpRequest, template: str, title: str, *, status: int = 200, **context: Any) -> Response[bytes]:
    """Render the template as a page with `title`.

    Templates see `title`, `nav`, `caller`, `csrf`, `notice`, `may(role)`, `path`, `query` and `wrong` (a
    `forms.WrongField`), besides `context`.
    """
    caller = caller_of(request) if CALLER in request.scope["state"] else KEYLESS
    shared = {
        "title": title,
        "nav": links(_pages(request), request.scope["path"], caller.scopes, hidden=_hidden(request)),
        "caller": caller,
        "csrf": csrf_of(session_token(request)),
        "notice": unquote(request.cookies.get(NOTICE, "")),
        "may": lambda role: not caller.scopes.isdisjoint(("admin", role)),
        "path": request.scope["path"],
        "query": dict(request.query_params),
        "base_url": site_of(request),
        "tier_names": tier_names(operations_of(request).serving),
        "wrong": None,
    }
    body = below(root_of(request), TEMPLATES.get_template(template).render(shared | context)).encode()
    response = Response(body, status_code=status, media_type="text/html", headers=HEADERS)
    if NOTICE in request.cookies:
        response.delete_cookie(NOTICE, path=HOME)
    return response


# Texts of users have no quotes: templates escape them.
_LINK = re.compile(r"""(\b(?:href|src|action|formaction|data-events)="|\bcontent="0; url=)(?=/(?!/))""")


def below(root: str, html: str) -> str:
    """Return `html` with its links to our own paths below `root`."""
    return _LINK.sub(rf"\g<1>{root}", html) if root else html


def tier_names(serving: Serving) -> dict[int, str]:
    """Return the tiers' names in the catalogue by their numbers."""
    return serving.routing.served.catalog.tier_names


def _pages(request: HttpRequest) -> tuple[Page, ...]:
    """The site's pages; for a failed path, none."""
    handler = request.scope.get("route_handler")
    pages: tuple[Page, ...] = () if handler is None else handler.opt.get(OPT, ())
    return pages


def _hidden(request: HttpRequest) -> frozenset[str]:
    """The paths of pages about what this server does not have."""
    return frozenset() if operations_of(request).core_knobs.cores else frozenset({"/core"})


def back_to(path: str, notice: str | None = None) -> Response[Any]:
    """Redirect to `path`, a path or URL, after a change (POST, redirect, GET); the page shows the notice once."""
    # Headers hold Latin-1 only, and URLs ASCII.
    location = quote(path, safe="%/?#[]@:!$&'()*+,;=~")
    response: Response[Any] = Response(None, status_code=303, headers={**HEADERS, "location": location})
    if notice is not None:
        response.set_cookie(
            Cookie(NOTICE, value=quote(notice[:512]), path=HOME, max_age=60, httponly=True, samesite="strict")
        )
    return response


def failure_page(request: Request[Any, Any, Any], error: Exception) -> Response[Any]:
    """Exception handler of all pages: redirect to the sign-in, or show what is wrong and what to do."""
    if isinstance(error, NotSignedInError):
        wanted = request.scope["path"] if request.method == "GET" else HOME
        query = request.scope["query_string"].decode("latin-1")
        wanted = f"{wanted}?{query}" if query and request.method == "GET" else wanted
        return back_to(LOGIN if wanted == HOME else f"{LOGIN}?{urlencode({'next': wanted})}")
    failure = as_api_error(error)
    if failure.status >= 500:
        bug = None if isinstance(error, (TierError, HTTPException)) or failure is error else error
        log.error("page %s: %d, %s", request.scope["path"], failure.status, type(error).__name__, exc_info=bug)
    response = page(
        request,
        "error.html",
        http.HTTPStatus(failure.status).phrase,
        status=failure.status,
        failure=failure,
        asked=request.method == "GET",
        request_id=request_id_of(request),
    )
    if failure.status in (429, 503):
        response.headers["retry-after"] = failure.retry_after
    return response


def _count(value: float | None) -> str:
    return "–" if value is None else f"{value:,.0f}"


def _seconds(value: float | None, most: float | None = None) -> str:
    """Format seconds in a readable unit: that of `most`, the greatest of values that are compared, if given."""
    if value is None or not math.isfinite(value):
        return "–"
    scale, unit = _unit_of(value if most is None else most)
    return f"{value * scale:.3g} {unit}"


def _unit_of(seconds: float) -> tuple[float, str]:
    """Return the unit in which seconds are readable, and how many of it a second has."""
    return (1e3, "ms") if seconds < 1 else (1.0, "s") if seconds < 120 else (1 / 60, "min")


def _milliseconds(value: float | None) -> str:
    return _seconds(None if value is None else value / 1e3)


def _quantiles(figure: Quantiles) -> str:
    """Format p50, p95 and p99 of seconds in one common unit."""
    values = [value for value in (figure.p50, figure.p95, figure.p99) if value is not None and math.isfinite(value)]
    if len(values) < 3:
        return "–"
    scale, unit = (1.0, "s") if values[-1] >= 1 else (1e3, "ms")
    return " / ".join(f"{value * scale:.3g}" for value in values) + f" {unit}"


def _usd(value: float | None) -> str:
    if value is None:
        return "–"
    sign, size = "-" if value < 0 else "", abs(value)
    # Below a dollar two significant digits, without an exponent.
    digits = 2 if size >= 1 or not size else 1 - math.floor(math.log10(size))
    return f"{sign}${size:,.{digits}f}"


def _exact_usd(value: float) -> str:
    """Format whole micro-dollars, as budgets are kept: with all their digits, two at least."""
    whole, _, cents = f"{value:,.6f}".partition(".")
    return f"${whole}.{cents.rstrip('0'):0<2}"


def _percent(value: float | None) -> str:
    if value is None:
        return "–"
    # What is more than nothing is not shown as 0.0%.
    return f"{value:.1%}" if not value or abs(value) >= 0.001 else f"{value * 100:.2g}%"


def _bytes(value: float | None) -> str:
    if value is None:
        return "–"
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(value) < 1024:
            return f"{value:.3g} {unit}" if unit != "B" else f"{value:.0f} B"
        value /= 1024
    return f"{value:.3g} TiB"


def _number(value: float | None, digits: int = 3) -> str:
    if value is None:
        return "–"
    # Thousands as words have them, without an exponent.
    return f"{value:,.0f}" if abs(value) >= 10**digits else f"{value:.{digits}g}"


def _when(value: float | None) -> str:
    """Format epoch seconds as UTC, to the second."""
    if value is None:
        return "–"
    try:
        return datetime.fromtimestamp(value, UTC).strftime("%Y-%m-%d %H:%M:%S")
    except (ValueError, OverflowError, OSError):
        return str(value)


def _url(path: str, query: Mapping[str, Any] | None = None, **more: Any) -> str:
    """Return `path` with a query; None and "" are left out."""
    parameters = {**(query or {}), **more}
    kept = {name: value for name, value in parameters.items() if value not in (None, "")}
    return f"{path}?{urlencode(kept)}" if kept else path


def _templates() -> Environment:
    environment = Environment(
        loader=PackageLoader("gateway.operations.dashboard"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        auto_reload=False,
    )
    environment.filters |= {
        "count": _count,
        "seconds": _seconds,
        "milliseconds": _milliseconds,
        "usd": _usd,
        "exact_usd": _exact_usd,
        "percent": _percent,
        "quantiles": _quantiles,
        "bytes": _bytes,
        "number": _number,
        "when": _when,
    }
    environment.globals |= {"render": environment.call_filter, "url": _url, "asset": url_of, "chart": charts}
    return environment


TEMPLATES = _templates()


class CompiledTemplates:
    """Compiles all templates on a thread before the first page of an application: half a second of CPU, of which a
    single page's share would hold up the event loop for a tenth of a second."""

    def __init__(self) -> None:
        self._compiling = asyncio.Lock()
        self._done = False

    async def __call__(self, _: HttpRequest) -> None:
        """Litestar's hook before a request."""
        if not self._done:
            async with self._compiling:
                await asyncio.to_thread(lambda: [TEMPLATES.get_template(name) for name in TEMPLATES.list_templates()])
                self._done = True


# What stands in the page as a command must not be able to hold one.
_ADDRESS = re.compile(r"https?://[A-Za-z0-9.:\[\]_-]+(?:/[A-Za-z0-9._~-]+)*\Z")
QUESTION = {"model": "auto", "messages": [{"role": "user", "content": "Hello!"}]}


def first_request(request: HttpRequest) -> str:
    """Return the command; it names a key in the environment where callers need one."""
    key = ' -H "Authorization: Bearer $AIO_API_KEY"' if access_of(request).tenancy.directory.asks_for_keys else ""
    question = shlex.quote(msgspec.json.encode(QUESTION).decode())
    return f"curl {address(request)}/v1/chat/completions -H 'Content-Type: application/json'{key} -d {question}"


def address(request: HttpRequest) -> str:
    """Return the address by which the client reached us."""
    url, settings = site_of(request), serving_of(request).settings
    return url if _ADDRESS.match(url) else f"http://{authority_of(hosts_of(settings.host)[0], settings.port)}"
