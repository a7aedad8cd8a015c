"""A real browser with a page of another site open, on the machine of a gateway without API keys."""

import os
from collections.abc import Iterator

import httpx
import pytest

# A missing package only fails a run that requires it.
if not os.environ.get("AIO_REQUIRE_BROWSER"):
    pytest.importorskip("playwright", reason="needs playwright and axe-playwright-python, of the extra dev")

from playwright.sync_api import Browser, Page

from tests.gateway.operations.dashboard.real_gateway import IN_CHROMIUM, chromium
from tests.gateway.processes.left_behind import left_behind
from tests.http_server import Reply, answering
from tests.support.served import ServedProcess, served
from tests.support.upstream import running_upstream, write_remote_catalog

pytestmark = IN_CHROMIUM

# Everything that a page may send to another site without permission; what it reads of the answer, or why not.
ATTACK = """async ([gateway, orders]) => {
    const form = new FormData();
    form.append("purpose", "user_data");
    form.append("file", new Blob(["planted"]), "planted.txt");
    const send = (path, body) => fetch(gateway + path, {method: "POST", mode: "no-cors", body});
    for (const [path, body] of orders) {
        await send(path, body);
        await send(path, new Blob([body]));
    }
    await send("/v1/files", form);
    return await new Promise(resolve => {
        const socket = new WebSocket(gateway.replace("http", "ws") + "/v1/chat/completions/ws");
        socket.onopen = () => resolve("opened");
        socket.onerror = () => resolve("refused");
    });
}"""
CHAT = '{"model": "tier-1", "messages": [{"role": "user", "content": "Hi"}]}'
ORDERS = [
    ["/v1/chat/completions", CHAT],
    ["/admin/api/teams", '{"name": "planted"}'],
    ["/admin/api/keys", '{"name": "planted"}'],
    ["/v1/admin/reload", '{"reason": "planted"}'],
]
OTHER_SITE = Reply(b"<title>Another site</title>", headers={"content-type": "text/html"})


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedProcess]:
    data = tmp_path_factory.mktemp("data")
    with running_upstream() as upstream:
        catalog = write_remote_catalog(data / "catalog.toml", upstream.base_url)
        with served(data, data / "cache", "--catalog", str(catalog)) as process:
            yield process


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """All names of the other site resolve to this machine, as after DNS rebinding."""
    with chromium("--host-resolver-rules=MAP *.example 127.0.0.1") as found:
        yield found


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    context = browser.new_context()
    yield context.new_page()
    context.close()


def test_a_page_of_another_site_leaves_nothing_behind(gateway: ServedProcess, page: Page) -> None:
    with answering(lambda asked: OTHER_SITE) as site:
        before = left_behind(gateway)
        for name in ("evil.example", "localhost"):
            page.goto(site.replace("127.0.0.1", name))
            assert page.title() == "Another site"
            assert page.evaluate(ATTACK, [gateway.url, ORDERS]) == "refused"
        assert left_behind(gateway) == before


def test_a_page_whose_name_now_means_this_machine_reads_nothing_and_asks_nothing(
    gateway: ServedProcess, page: Page
) -> None:
    before = left_behind(gateway)
    page.goto(f"http://evil.example:{httpx.URL(gateway.url).port}/health/live")
    read = """async ([path, options]) => {
        const answer = await fetch(path, options);
        return [answer.status, (await answer.json()).error.code];
    }"""
    json = {"content-type": "application/json"}
    for path, options in (
        ("/v1/models", {}),
        ("/v1/files", {}),
        ("/v1/chat/completions", {"method": "POST", "headers": json, "body": CHAT}),
        ("/tokenize", {"method": "POST", "headers": json, "body": '{"model": "tier-1", "prompt": "Hi"}'}),
    ):
        assert page.evaluate(read, [path, options]) == [403, "host_not_allowed"], path
    assert page.evaluate(read, ["/admin/api/keys", {}]) == [401, "invalid_api_key"]
    assert left_behind(gateway) == before


def test_a_page_of_this_machine_may_ask(gateway: ServedProcess, page: Page) -> None:
    page.goto(f"http://localhost:{httpx.URL(gateway.url).port}/health/live")
    ask = """async (body) => {
        const headers = {"content-type": "application/json"};
        return (await fetch("/v1/chat/completions", {method: "POST", headers, body})).status;
    }"""
    assert page.evaluate(ask, CHAT) == 200
