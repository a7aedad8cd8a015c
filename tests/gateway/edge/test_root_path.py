"""AIO below a path of a reverse proxy: pages, sign-in, documentation, redirects and cookies, behind a real nginx."""

import re
from html import unescape
from pathlib import Path
from typing import Any
from urllib.parse import urljoin, urlsplit

import httpx
import pytest

from gateway.base.settings import Settings, SettingsError
from gateway.edge.asgi import UnderRoot
from gateway.edge.proxies import TrustedProxies, root_path
from gateway.operations.dashboard.html.rendering import below
from gateway.processes.server import run_server
from tests.gateway.edge.nginx import nginx
from tests.gateway.operations.dashboard.browsing import forms_of
from tests.support.administrator import ADMIN_KEY
from tests.support.served import served
from tests.support.upstream import running_upstream, write_remote_catalog

_LINK = re.compile(r"""\s(?:href|src|action|formaction|data-events)=["']([^"']*)["']""")
TOLD = "proxy_set_header X-Forwarded-Prefix /team/ai;"


def links(page: httpx.Response) -> list[str]:
    return [unescape(link) for link in _LINK.findall(page.text) if not link.startswith(("#", "data:", "http"))]


@pytest.mark.processes
@pytest.mark.parametrize(
    ("environment", "upstream_path", "more"),
    [
        ({"AIO_ROOT_PATH": "/team/ai/"}, "", ""),
        ({"AIO_ROOT_PATH": "/team/ai"}, "/", ""),
        ({"AIO_TRUSTED_PROXIES": "127.0.0.1"}, "/", TOLD),
        ({"AIO_TRUSTED_PROXIES": "127.0.0.1"}, "", TOLD),
    ],
    ids=["set-and-passed", "set-and-cut", "told-and-cut", "told-and-passed"],
)
def test_every_link_redirect_and_cookie_is_below_the_path(
    tmp_path: Path, environment: dict[str, str], upstream_path: str, more: str
) -> None:
    with running_upstream() as upstream:
        catalog = str(write_remote_catalog(tmp_path / "catalog.toml", upstream.base_url))
        with (
            served(tmp_path / "data", tmp_path / "cache", "--catalog", catalog, environment=environment) as process,
            nginx(tmp_path / "nginx", "/team/ai/", process.url + upstream_path, more) as url,
            httpx.Client(base_url=url, timeout=60, follow_redirects=False) as browser,
        ):
            walk(browser, f"{url}/team/ai")
            # Without the proxy nothing changes.
            direct = httpx.get(f"{process.url}/admin/login")
            assert ("/team/ai" in direct.text) is ("AIO_ROOT_PATH" in environment)


def walk(browser: httpx.Client, base: str) -> None:
    to_login = browser.get("/team/ai/admin/requests")
    assert (to_login.status_code, to_login.headers["location"]) == (
        303,
        "/team/ai/admin/login?next=%2Fadmin%2Frequests",
    )
    form = browser.get(to_login.headers["location"])
    fields = forms_of(form)["/team/ai/admin/login"]["fields"] | {"secret": ADMIN_KEY}
    signed_in = browser.post("/team/ai/admin/login", data=fields)
    assert (signed_in.status_code, signed_in.headers["location"]) == (303, "/team/ai/admin/requests")
    assert {cookie.path for cookie in browser.cookies.jar} == {"/team/ai"}

    seen: dict[str, int] = {}
    wanted = ["/team/ai/admin", "/team/ai/docs"]
    while wanted:
        path = urlsplit(wanted.pop()).path
        if path in seen or "/oidc/" in path:
            continue
        page = browser.get(path)
        seen[path] = page.status_code
        if not page.headers["content-type"].startswith("text/html"):
            continue
        found = links(page)
        assert [link for link in found if link.startswith("/") and not link.startswith("/team/ai/")] == []
        # Forms have targets that take no GET.
        wanted += [urljoin(path, link) for link in found if f'href="{link}"' in unescape(page.text)]
    assert {path: status for path, status in seen.items() if status != 200} == {}
    assert seen.keys() >= {"/team/ai/admin", "/team/ai/admin/keys", "/team/ai/admin/quality", "/team/ai/docs"}

    assert f"{base}/v1" in browser.get("/team/ai/admin").text
    schema = browser.get("/team/ai/docs/openapi.json").json()
    assert schema["servers"] == [{"url": "/team/ai"}]
    with browser.stream("GET", "/team/ai/admin/overview/events") as events:
        event = next(line for line in events.iter_lines() if 'href="' in line)
        assert 'href="/admin' not in event
    assert browser.get("/team/ai/v1/models", headers={"authorization": f"Bearer {ADMIN_KEY}"}).status_code == 200
    assert browser.get("/team/ai/health/live").status_code == 200


@pytest.mark.parametrize(
    "given",
    [
        "ai", "//evil.example", "/\\evil.example", "https://evil.example", "/a//b", "/a/../b", "/..", "/.", "/a b",
        "/a\r\nset-cookie: x=1", '/a"onclick=x', "/a<script>", "/a%0d%0a", "/a;x", "/a?b", "/a#b", "/a,/b", "/\u00e9",
        "/admin", "/v1/x", "/docs", "/a\x00", f"/{'a' * 300}",
    ],
)  # fmt: skip
def test_what_is_no_plain_path_is_no_root(given: str) -> None:
    assert root_path(given) is None
    sent = [(b"x-forwarded-prefix", given.encode("utf-8"))]
    assert TrustedProxies("127.0.0.1").root("127.0.0.1", sent) == ""
    with pytest.raises(SettingsError, match="AIO_ROOT_PATH"):
        run_server(Settings(root_path=given, port=0, data_dir="/nowhere"))


def test_only_a_trusted_proxy_tells_the_path_and_only_once() -> None:
    proxies, told = TrustedProxies("10.0.0.0/24"), [(b"x-forwarded-prefix", b" /team/ai/ ")]
    assert proxies.root("10.0.0.7", told) == "/team/ai"
    for peer in ("10.0.1.7", "127.0.0.1", "", None):
        assert proxies.root(peer, told) == ""
    assert proxies.root("10.0.0.7", told * 2) == proxies.root("10.0.0.7", []) == ""
    assert root_path("/") == root_path(" ") == ""


async def test_headers_and_paths_are_changed_where_they_are_ours() -> None:
    seen: list[Any] = []
    sent: list[Any] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        seen.append((scope["path"], scope["raw_path"]))
        names = [
            (b"location", b"/admin"), (b"Location", b"https://elsewhere/x"), (b"location", b"//elsewhere"),
            (b"set-cookie", b"a=1; HttpOnly; Path=/; SameSite=strict"), (b"set-cookie", b"b=/x/; Path=/admin/login"),
            (b"set-cookie", b"__Host-c=1; Path=/"), (b"x-other", b"/admin"),
        ]  # fmt: skip
        await send({"type": "http.response.start", "status": 303, "headers": names})
        await send({"type": "http.response.body", "body": b""})

    async def send(event: Any) -> None:
        sent.append(event)

    async def receive() -> Any:
        raise AssertionError

    under: Any = UnderRoot(app, lambda _: "/ai")
    for path in ("/ai", "/ai/", "/ai/admin", "/aid", "/admin/ai", "/"):
        scope = {"type": "http", "path": path, "raw_path": path.encode(), "headers": []}
        await under(scope, receive, send)
    paths = ["/", "/", "/admin", "/aid", "/admin/ai", "/"]
    assert seen == [(path, path.encode()) for path in paths]
    assert [value for _, value in sent[0]["headers"]] == [
        b"/ai/admin", b"https://elsewhere/x", b"//elsewhere",
        b"a=1; HttpOnly; Path=/ai; SameSite=strict", b"b=/x/; Path=/ai/admin/login", b"__Host-c=1; Path=/", b"/admin",
    ]  # fmt: skip


def test_texts_of_users_are_no_links() -> None:
    html = '<a href="/admin">x</a><a href="//e">y</a><p>href=&#34;/admin&#34; </p><form action="/admin/keys">'
    assert below("/ai", html) == html.replace('"/admin', '"/ai/admin')
    assert below("", html) == html
