"""Templates are compiled outside the event loop: a large page's would hold it up for a tenth of a second."""

import threading
from typing import Any

import pytest

from gateway.operations.dashboard.html.rendering import TEMPLATES
from tests.gateway.operations.dashboard.browsing import browser, sign_in
from tests.support.app import RunningGateway
from tests.support.shared_app import forget_whole_app

pytestmark = pytest.mark.asyncio(loop_scope="module")


async def test_no_template_is_compiled_on_the_event_loop(
    gateway: RunningGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads: set[int] = set()
    compile_template = TEMPLATES.compile

    def watched(*arguments: Any, **named: Any) -> Any:
        threads.add(threading.get_ident())
        return compile_template(*arguments, **named)

    assert TEMPLATES.cache is not None
    TEMPLATES.cache.clear()
    forget_whole_app()
    monkeypatch.setattr(TEMPLATES, "compile", watched)
    async with browser(gateway) as client:
        await sign_in(client)
        for path in ("/admin", "/admin/quality", "/admin/core", "/admin/routing"):
            assert (await client.get(path)).status_code == 200
    assert threads
    assert threading.get_ident() not in threads
