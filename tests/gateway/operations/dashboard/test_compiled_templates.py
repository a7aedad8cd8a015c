"""Templates are compiled outside the event loop: a large page's would hold it up for a tenth of a second."""

import threading
from pathlib import Path
from typing import Any

import pytest

from gateway.base.settings import Settings
from gateway.http import http_app
from gateway.operations.dashboard.html.rendering import TEMPLATES
from tests.gateway.operations.dashboard.browsing import browser, sign_in
from tests.support.app import running_gateway

pytestmark = pytest.mark.asyncio(loop_scope="module")


async def test_no_template_is_compiled_on_the_event_loop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    threads: set[int] = set()
    compile_template = TEMPLATES.compile

    def watched(*arguments: Any, **named: Any) -> Any:
        threads.add(threading.get_ident())
        return compile_template(*arguments, **named)

    assert TEMPLATES.cache is not None
    TEMPLATES.cache.clear()
    monkeypatch.setattr(TEMPLATES, "compile", watched)
    settings = Settings(data_dir=str(tmp_path), monitor=False)
    async with running_gateway(settings, http=http_app) as gateway, browser(gateway) as client:
        await sign_in(client)
        for path in ("/admin", "/admin/quality", "/admin/core", "/admin/routing"):
            assert (await client.get(path)).status_code == 200
    assert threads
    assert threading.get_ident() not in threads
