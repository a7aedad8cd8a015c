"""Signing in to the dashboard at a real OpenID provider in a process of its own."""

import base64
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import httpx
import msgspec
import pytest
import pytest_asyncio
from sqlalchemy import select

from gateway.base.settings import Settings
from gateway.operations.dashboard.sign_in.login_limit import MOST_FAILURES_OF_A_NETWORK, MOST_STARTS_OF_A_NETWORK
from gateway.tenancy.users.sessions import COOKIE
from migrations.tables.audit import audit_events
from migrations.tables.tenancy import dashboard_users
from tests.gateway.operations.dashboard.browsing import PASSWORD, browser, sign_in, with_user
from tests.gateway.operations.dashboard.openid_provider import account, openid_provider
from tests.support.app import RunningGateway, StartApp, running_gateway

pytestmark = pytest.mark.asyncio(loop_scope="module")
PAGE = "/admin/requests"


@pytest.fixture(scope="module")
def provider() -> Iterator[str]:
    with openid_provider() as address:
        yield address


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def aio(provider: str, module_app: StartApp) -> RunningGateway:
    return await module_app(
        oidc_issuer=provider,
        oidc_client_id="aio",
        oidc_client_secret="s3cret & more",
        oidc_roles="platform=operator, leads=admin, readers=viewer",
    )


async def consented(there: str, **form: str) -> str:
    """Fill in the provider's form; returns where it sends the browser."""
    async with httpx.AsyncClient() as elsewhere:
        return str((await elsewhere.post(there, data=form)).headers["location"])


async def through_provider(client: httpx.AsyncClient, sub: str, page: str = PAGE, **form: str) -> httpx.Response:
    """Go to the provider by the link of the sign-in page, consent as `sub`, and come back."""
    link = re.search(r'href="(/admin/oidc/login[^"]*)"', (await client.get("/admin/login", params={"next": page})).text)
    assert link is not None
    there = (await client.get(link[1])).headers["location"]
    return await client.get(await consented(there, sub=sub, **form))


async def test_a_user_signs_in_with_the_role_of_its_groups(aio: RunningGateway, provider: str) -> None:
    async with browser(aio) as client:
        shown = await through_provider(client, account(provider, "olga", "platform", "readers"))
        assert shown.status_code == 200, shown.text
        assert f'content="0; url={PAGE}"' in shown.text
        assert "SameSite=strict" in next(c for c in shown.headers.get_list("set-cookie") if c.startswith(COOKIE))
        inside = await client.get(PAGE)
        assert inside.status_code == 200
        assert "olga" in inside.text
        assert (await client.get("/admin/users")).status_code == 403, "an operator is no admin"
    async with aio.serving.database.connect() as connection:
        row = (await connection.execute(select(dashboard_users).where(dashboard_users.c.name == "olga"))).one()
        events = (await connection.scalars(select(audit_events.c.action).order_by(audit_events.c.created_at))).all()
    assert row.role == "operator"
    assert "session.begun" in events[events.index("user.added") :]


async def test_another_role_at_the_provider_holds_from_the_next_sign_in_on(aio: RunningGateway, provider: str) -> None:
    async with browser(aio) as client:
        await through_provider(client, account(provider, "rita", "readers"))
        assert (await client.get("/admin/users")).status_code == 403
        await through_provider(client, account(provider, "rita", "leads"))
        assert (await client.get("/admin/users")).status_code == 200


async def test_an_account_without_a_group_of_ours_stays_out(aio: RunningGateway, provider: str) -> None:
    async with browser(aio) as client:
        refused = await through_provider(client, account(provider, "sam", "interns"))
        assert refused.status_code == 401
        assert "AIO_OIDC_ROLES" in refused.text
        assert (await client.get(PAGE)).status_code == 303


async def test_a_name_of_another_user_is_not_taken_over(aio: RunningGateway, provider: str) -> None:
    async with with_user(aio, "tess", "admin"), browser(aio) as client:
        refused = await through_provider(client, account(provider, "tess", "leads"))
        assert refused.status_code == 401
        assert "belongs to another user" in refused.text
    async with browser(aio) as client:
        await through_provider(client, account(provider, "una", "readers"))
        refused = await through_provider(client, account(provider, "una", "leads", sub="another-subject"))
        assert refused.status_code == 401


async def test_no_password_opens_the_account_of_a_providers_user(aio: RunningGateway, provider: str) -> None:
    async with browser(aio) as client:
        await through_provider(client, account(provider, "vera", "readers"))
    async with aio.serving.database.connect() as connection:
        query = select(dashboard_users.c.password).where(dashboard_users.c.name == "vera")
        kept = (await connection.execute(query)).scalar_one()
    async with browser(aio) as client:
        for secret in ("", PASSWORD, kept):
            assert (await sign_in(client, secret, "vera")).status_code == 401


async def test_a_sign_in_that_another_browser_began_is_refused(aio: RunningGateway, provider: str) -> None:
    """Else a page could sign a visitor in to the attacker's account."""
    async with browser(aio) as attacker, browser(aio) as victim:
        there = (await attacker.get("/admin/oidc/login")).headers["location"]
        back = await consented(there, sub=account(provider, "mallory", "readers"))
        await victim.get("/admin/oidc/login")
        refused = await victim.get(back)
        assert refused.status_code == 401
        assert "not started in this browser" in refused.text
        assert (await victim.get(PAGE)).status_code == 303


async def test_what_the_provider_refuses_is_said(aio: RunningGateway, provider: str) -> None:
    async with browser(aio) as client:
        refused = await through_provider(client, "sub-olga", action="deny")
        assert refused.status_code == 401
        assert "The provider refused: access_denied" in refused.text
        spoofed = await client.get("/admin/oidc/callback", params={"error": "Call 555 0100 to unlock"})
        # With its space, which no random token of the page has.
        assert "555 0100" not in spoofed.text


async def test_only_pages_of_ours_follow(aio: RunningGateway, provider: str) -> None:
    async with browser(aio) as client:
        shown = await through_provider(client, account(provider, "olga", "platform"), page="https://evil.example/")
        assert 'content="0; url=/admin"' in shown.text


async def test_an_attempt_that_is_made_up_reaches_no_provider_and_a_network_has_a_limit(
    provider: str, tmp_path: Path
) -> None:
    made_up = msgspec.json.encode({"state": "s", "nonce": "n", "verifier": "v", "page": "/admin"})
    settings = Settings(
        data_dir=str(tmp_path), monitor=False, oidc_issuer=provider, oidc_client_id="aio", oidc_roles="*=viewer"
    )
    async with running_gateway(settings) as running, browser(running) as client:
        statuses = Counter[int]()
        for forged in (made_up.hex(), base64.urlsafe_b64encode(made_up).decode() + "." + "0" * 64):
            for _ in range(13):
                answer = await client.get(
                    "/admin/oidc/callback", params={"code": "c", "state": "s"}, headers={"cookie": f"aio_oidc={forged}"}
                )
                statuses[answer.status_code] += 1
                assert "not started in this browser" in answer.text or answer.headers["retry-after"]
        assert statuses == {401: MOST_FAILURES_OF_A_NETWORK, 429: 26 - MOST_FAILURES_OF_A_NETWORK}
        started = [(await client.get("/admin/oidc/login")).status_code for _ in range(MOST_STARTS_OF_A_NETWORK + 1)]
        assert Counter(started) == {303: MOST_STARTS_OF_A_NETWORK, 429: 1}
