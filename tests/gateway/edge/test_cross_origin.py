"""Web pages of other sites against a real gateway without API keys: refused, and nothing is changed."""

import asyncio
import json
import re
from collections.abc import Iterator
from contextlib import nullcontext
from typing import Any

import httpx
import openai
import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import InvalidStatus

from gateway.base.settings import Settings
from gateway.edge.proxies import host_is_allowed
from gateway.http import http_app
from tests.gateway.processes.left_behind import left_behind
from tests.support.administrator import ADMIN_HEADERS
from tests.support.app import RunningGateway
from tests.support.served import ServedProcess, served
from tests.support.upstream import running_upstream, write_remote_catalog

CHAT = "/v1/chat/completions"
HELLO = {"model": "tier-1", "messages": [{"role": "user", "content": "Hello there"}]}
FRIEND = "https://app.example"
FORM = (
    '--b\r\nContent-Disposition: form-data; name="purpose"\r\n\r\nuser_data\r\n'
    '--b\r\nContent-Disposition: form-data; name="file"; filename="a.txt"\r\n\r\nplanted\r\n--b--\r\n'
)
# What browsers send of a page of another site: with a fetch of their own time, from a sandboxed frame, without
# fetch metadata as over plain HTTP, and from another port of this machine.
PAGES = {
    "evil.example": {"origin": "https://evil.example", "sec-fetch-site": "cross-site"},
    "frame": {"origin": "null", "sec-fetch-site": "cross-site"},
    "no metadata": {"origin": "http://evil.example"},
    "sandbox without metadata": {"origin": "null"},
    "other port": {"origin": "http://localhost:3000", "sec-fetch-site": "same-site"},
}
# What pages may send without asking first.
SIMPLE = ("text/plain", "application/x-www-form-urlencoded", "text/plain; charset=application/json", None)
ORDERS: list[tuple[str, Any]] = [
    ("/admin/api/keys", {"name": "planted"}),
    ("/admin/api/keys", {"name": "planted", "terms": {"scopes": ["admin"]}}),
    ("/admin/api/teams", {"name": "planted"}),
    ("/v1/admin/reload", {"reason": "planted"}),
    ("/v1/feedback", {"request_id": "chatcmpl-1", "rating": "down"}),
    ("/v1/batches", {"input_file_id": "file-1", "endpoint": CHAT, "completion_window": "24h"}),
    ("/v1/route", HELLO),
    ("/tokenize", {"model": "tier-1", "prompt": "Hello"}),
    (CHAT, HELLO),
]


@pytest.fixture(scope="module")
def aio(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedProcess]:
    """It asks its callers for no keys; one administrator has one."""
    data = tmp_path_factory.mktemp("data")
    more = {"AIO_CORS_ORIGINS": FRIEND, "AIO_ALLOWED_HOSTS": "ai.example, *.lab.example"}
    with running_upstream() as upstream:
        catalog = write_remote_catalog(data / "catalog.toml", upstream.base_url)
        with served(data, data / "cache", "--catalog", str(catalog), environment=more) as process:
            yield process


def refused(answer: httpx.Response, code: str = "cross_origin_request") -> bool:
    return (answer.status_code, answer.json()["error"]["code"]) == (403, code)


@pytest.mark.parametrize("page", PAGES)
def test_a_page_of_another_site_changes_nothing_and_costs_nothing(aio: ServedProcess, page: str) -> None:
    before = left_behind(aio)
    with httpx.Client(base_url=aio.url, timeout=30, headers=PAGES[page]) as browser:
        for path, body in ORDERS:
            for kind in SIMPLE:
                headers = {} if kind is None else {"content-type": kind}
                answer = browser.post(path, content=json.dumps(body), headers=headers)
                assert refused(answer), (path, kind, answer.text)
        for path in ("/v1/files", "/admin/api/keys"):
            form = {"content-type": "multipart/form-data; boundary=b"}
            assert refused(browser.post(path, content=FORM, headers=form))
        for path in ("/admin/login", "/admin/logout", "/admin/keys"):
            answer = browser.post(path, data={"name": "planted", "secret": "x"})
            assert (answer.status_code, "set-cookie" in answer.headers) == (403, False), path
    assert left_behind(aio) == before


def test_an_unknown_bearer_is_no_key(aio: ServedProcess) -> None:
    for bearer in ("unused", "sk-aio-guessed"):
        headers = PAGES["evil.example"] | {"authorization": f"Bearer {bearer}"}
        assert refused(httpx.post(f"{aio.url}{CHAT}", json=HELLO, headers=headers))


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"sec-fetch-site": "same-origin", "origin": "https://behind.a.proxy"},
        {"sec-fetch-site": "none"},
        {"origin": FRIEND, "sec-fetch-site": "cross-site"},
        {"origin": FRIEND},
        PAGES["evil.example"] | ADMIN_HEADERS,
    ],
)
def test_programs_pages_of_ours_pages_that_the_operator_lists_and_who_has_a_key_may(
    aio: ServedProcess, headers: dict[str, str]
) -> None:
    assert httpx.post(f"{aio.url}{CHAT}", json=HELLO, headers=headers).status_code == 200
    own = headers.get("origin") or aio.url
    assert httpx.post(f"{aio.url}{CHAT}", json=HELLO, headers={"origin": own} | headers).status_code == 200


def test_pages_that_the_operator_lists_read_every_header_of_answers_and_refusals(aio: ServedProcess) -> None:
    for body, status in ((HELLO, 200), ({}, 400)):
        answer = httpx.post(f"{aio.url}{CHAT}", json=body, headers={"origin": FRIEND})
        named = (answer.headers["access-control-allow-origin"], answer.headers["access-control-expose-headers"])
        assert (answer.status_code, *named) == (status, FRIEND, "*")
        # With credentials `*` would be no wildcard.
        assert "access-control-allow-credentials" not in answer.headers


@pytest.mark.parametrize(
    ("origin", "host", "is_own"),
    [
        ("http://127.0.0.1:8080", "127.0.0.1:8080", True),
        ("https://AI.example", "ai.example:443", True),
        ("https://ai.example:443", "ai.example", True),
        ("http://ai.example", "ai.example", True),
        ("http://ai.example:443", "ai.example", False),
        ("http://ai.example:8081", "ai.example:8080", False),
        ("http://ai.example.evil.example", "ai.example", False),
        ("file://", "ai.example", False),
        ("http://", "ai.example", False),
        ("ftp://ai.example", "ai.example", False),
    ],
)
def test_an_origin_is_ours_by_the_host_that_was_asked(aio: ServedProcess, origin: str, host: str, is_own: bool) -> None:
    answer = httpx.post(f"{aio.url}{CHAT}", json=HELLO, headers={"origin": origin, "host": host})
    assert answer.status_code == 200 if is_own else refused(answer)


def test_a_json_body_is_declared_as_json_or_not_at_all(aio: ServedProcess) -> None:
    body = json.dumps(HELLO)
    for kind in (*SIMPLE[:3], "multipart/form-data; boundary=json", "application/octet-stream"):
        answer = httpx.post(f"{aio.url}{CHAT}", content=body, headers={"content-type": kind})  # type: ignore[dict-item]
        assert (answer.status_code, answer.json()["error"]["code"]) == (415, "unsupported_media_type"), kind
    for kind in ("application/json", "application/json; charset=utf-8", "Application/JSON", "application/a+json", None):
        headers = {} if kind is None else {"content-type": kind}
        assert httpx.post(f"{aio.url}{CHAT}", content=body, headers=headers).status_code == 200, kind


@pytest.mark.asyncio(loop_scope="module")
async def test_every_route_that_changes_anything_refuses_pages_of_other_sites(gateway: RunningGateway) -> None:
    changing = [
        (method, re.sub(r"{\w+}", "1", route.path_format))
        for route in http_app(Settings(), nullcontext).routes
        for method in getattr(route, "methods", ())
        if method not in ("GET", "HEAD", "OPTIONS")
    ]
    assert len(changing) > 50
    async with httpx.AsyncClient(base_url=gateway.url, headers=PAGES["evil.example"]) as browser:
        for method, path in changing:
            answer = await browser.request(method, path)
            assert answer.status_code == 403, (method, path)
            assert "A page of another site" in answer.text, (method, path)


# -- host names ------------------------------------------------------------------------------------

REBOUND = ("evil.example", "evil.example:8080", "localhost.evil.example", "127.0.0.1.evil.example", "10.0.0.1", "")
OURS = ("localhost", "LOCALHOST:8080", "localhost.", "aio.localhost:1", "127.0.0.1", "127.8.8.8:8080", "[::1]:8080")
LISTED = ("ai.example", "AI.example:8080", "a.lab.example", "b.a.lab.example.")


@pytest.mark.parametrize("host", REBOUND)
def test_a_page_whose_name_was_rebound_to_this_machine_reads_and_asks_nothing(aio: ServedProcess, host: str) -> None:
    # Of such a page a browser says that it is the server's own.
    headers = {"host": host, "origin": f"http://{host}", "sec-fetch-site": "same-origin"}
    with httpx.Client(base_url=aio.url, headers=headers) as browser:
        for path in ("/v1/models", "/v1/files", "/v1/requests/1"):
            assert refused(browser.get(path), "host_not_allowed"), path
        for path in (CHAT, "/tokenize", "/v1/files"):
            answer = browser.post(path, json=HELLO)
            assert refused(answer, "host_not_allowed"), path
        assert "AIO_ALLOWED_HOSTS" in answer.json()["error"]["message"]
        assert browser.get("/v1/admin/knobs/core").status_code == 401
        assert browser.get("/health/live").status_code == 200
        assert browser.get("/metrics").status_code == 200


@pytest.mark.parametrize("host", [*OURS, *LISTED])
def test_names_of_this_machine_and_those_that_are_listed_are_served(aio: ServedProcess, host: str) -> None:
    assert httpx.post(f"{aio.url}{CHAT}", json=HELLO, headers={"host": host}).status_code == 200


def test_who_has_a_key_may_use_any_name(aio: ServedProcess) -> None:
    headers = {"host": "evil.example"} | ADMIN_HEADERS
    assert httpx.get(f"{aio.url}/v1/models", headers=headers).status_code == 200


@pytest.mark.parametrize("bound", ["0.0.0.0", "::", "192.168.1.5", "gateway.example"])
def test_beyond_this_machine_addresses_and_the_servers_own_name_are_allowed_and_no_other_name(bound: str) -> None:
    assert host_is_allowed("192.168.1.5:8080", bound, "")
    assert host_is_allowed("[fe80::1]:8080", bound, "")
    assert host_is_allowed("gateway.example:8080", bound, "") == (bound == "gateway.example")
    assert host_is_allowed("gateway.example:8080", bound, "gateway.example")
    assert host_is_allowed("gateway.example:8080", bound, "other.example,*")
    for wrong in (
        "evil.example",
        "192.168.1.5.evil.example",
        "x@localhost",
        "localhost:x",
        "local host",
        "a/localhost",
    ):
        assert not host_is_allowed(wrong, bound, ""), wrong


def test_a_client_library_needs_no_key_that_is_known(aio: ServedProcess) -> None:
    for key in ("unused", "sk-anything"):
        with openai.OpenAI(base_url=f"{aio.url}/v1", api_key=key, max_retries=0) as client:
            answer = client.chat.completions.create(
                model="tier-1", messages=[{"role": "user", "content": "Hello there"}]
            )
            assert answer.choices[0].message.content == "Hello there"


# -- WebSockets ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("headers", "code"),
    [
        ({"origin": "http://evil.example"}, "cross_origin_request"),
        ({"sec-fetch-site": "cross-site"}, "cross_origin_request"),
        ({"host": "evil.example", "origin": "http://evil.example"}, "host_not_allowed"),
        ({"host": "evil.example"}, "host_not_allowed"),
        ({"origin": FRIEND}, None),
        ({"host": "ai.example", "origin": "http://ai.example"}, None),
        ({"origin": "http://evil.example"} | ADMIN_HEADERS, None),
        ({}, None),
    ],
)
def test_a_socket_opens_for_pages_and_names_of_ours_alone(
    aio: ServedProcess, headers: dict[str, str], code: str | None
) -> None:
    host, port = aio.url.removeprefix("http://").split(":")
    name = headers.get("host", f"{host}:{port}")
    more = {key: value for key, value in headers.items() if key != "host"}

    async def opened() -> Any:
        url = f"ws://{name}/v1/chat/completions/ws"
        try:
            async with connect(url, additional_headers=more, host=host, port=int(port)) as socket:
                await socket.send(json.dumps(HELLO))
                return json.loads(await socket.recv())["object"]
        except InvalidStatus as error:
            return error.response.status_code, json.loads(error.response.body or b"")["error"]["code"]

    assert asyncio.run(opened()) == ("chat.completion.chunk" if code is None else (403, code))
