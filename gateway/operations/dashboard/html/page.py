"""A page of the dashboard and its link in the navigation."""

import msgspec
from litestar.handlers import HTTPRouteHandler

OPT = "dashboard_pages"


class Page(msgspec.Struct, frozen=True, kw_only=True):
    """A page at `/admin` + `path`, with its handlers, whose paths are also relative to `/admin`.

    `role`: the role that sees the link; handlers check permissions themselves.
    """

    title: str
    path: str
    handlers: tuple[HTTPRouteHandler, ...]
    role: str = "viewer"


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
