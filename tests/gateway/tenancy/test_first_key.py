"""The first key for answers closes the gateway to callers without one; the command, the API and the page say so."""

import pytest

from gateway.tenancy.keys.key_commands import FIRST_KEY_NOTICE
from tests.gateway.operations.dashboard.browsing import browser, sign_in, submit
from tests.support.administrator import ADMIN_HEADERS, ADMIN_KEYS
from tests.support.app import RunningGateway, StartApp

CHAT = {"model": "tier-1", "messages": [{"role": "user", "content": "Hello"}]}


@pytest.fixture
async def aio(app: StartApp) -> RunningGateway:
    return await app(admin_keys=ADMIN_KEYS)


async def status_without_a_key(aio: RunningGateway) -> int:
    return (await aio.http.post("/v1/chat/completions", json=CHAT)).status_code


async def test_the_answer_over_http_says_what_then_holds(aio: RunningGateway) -> None:
    before = await status_without_a_key(aio)

    made = [
        (await aio.http.post("/admin/api/keys", json={"name": name}, headers=ADMIN_HEADERS)).json()
        for name in ("ada", "eve")
    ]

    assert [key["notice"] for key in made] == [FIRST_KEY_NOTICE, None]
    assert (before, await status_without_a_key(aio)) == (200, 401)


async def test_the_page_of_the_new_key_says_it(aio: RunningGateway) -> None:
    async with browser(aio) as admin:
        await sign_in(admin)
        pages = [
            (await submit(admin, await admin.get("/admin/keys"), "/admin/keys", name=name, scopes=scope)).text
            for name, scope in (("boss", "admin"), ("ada", "inference"), ("eve", "inference"))
        ]

    assert [FIRST_KEY_NOTICE in page for page in pages] == [False, True, False]
