"""Signing in at an OpenID provider of another site, in a real browser: its rules for cookies hold."""

import os
from pathlib import Path

import pytest

if not os.environ.get("AIO_REQUIRE_BROWSER"):
    pytest.importorskip("playwright", reason="needs playwright, of the extra dev")

from playwright.sync_api import Browser

from tests.gateway.operations.dashboard.openid_provider import account, openid_provider
from tests.gateway.operations.dashboard.real_gateway import IN_CHROMIUM
from tests.support.served import served
from tests.support.upstream import running_upstream, write_remote_catalog

pytestmark = IN_CHROMIUM


def test_the_strict_cookie_of_a_session_survives_the_way_back_from_another_site(
    chrome: Browser, tmp_path: Path
) -> None:
    with openid_provider() as provider, running_upstream() as upstream:
        subject = account(provider, "olga", "platform")
        environment = {
            "AIO_CATALOG": str(write_remote_catalog(tmp_path / "catalog.toml", upstream.base_url)),
            "AIO_OIDC_ISSUER": provider,
            "AIO_OIDC_CLIENT_ID": "aio",
            "AIO_OIDC_CLIENT_SECRET": "secret",
            "AIO_OIDC_ROLES": "platform=operator",
        }
        with served(tmp_path / "data", tmp_path / "cache", environment=environment) as gateway:
            page = chrome.new_context(base_url=gateway.url.replace("127.0.0.1", "localhost")).new_page()
            page.goto("/admin/requests")
            page.get_by_role("link", name="Sign in with your organisation").click()
            page.wait_for_url(f"{provider}/**")
            page.locator("input[name=sub]").fill(subject)
            page.get_by_role("button", name="Authorize").first.click()
            page.wait_for_url("http://localhost:*/admin/requests")
            assert "olga" in page.inner_text("header")
