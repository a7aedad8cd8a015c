"""A browser's behaviour over plain HTTP: keeps cookies, finds forms in pages and submits them."""

import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from html.parser import HTMLParser
from typing import Any

import httpx

from gateway.tenancy.changes import Order
from gateway.tenancy.users.sessions import RECHECK_SECONDS
from gateway.tenancy.users.users import Role, UserOrder, add_user
from tests.support.administrator import ADMIN_KEY
from tests.support.app import RunningGateway

PASSWORD = "correct horse battery"


class _Forms(HTMLParser):
    """Every form of a page: its action and its fields with their values."""

    def __init__(self) -> None:
        super().__init__()
        self.forms: list[dict[str, Any]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        if tag == "form":
            self.forms.append({"action": given.get("action"), "method": given.get("method", "get"), "fields": {}})
        elif tag == "input" and self.forms and given.get("name") and given.get("type") != "checkbox":
            self.forms[-1]["fields"][given["name"]] = given.get("value") or ""


def forms_of(page: httpx.Response) -> dict[str, dict[str, Any]]:
    """By action."""
    parser = _Forms()
    parser.feed(page.text)
    return {form["action"]: form for form in parser.forms}


def browser(gateway: RunningGateway, **more: Any) -> httpx.AsyncClient:
    """A browser without a session."""
    return httpx.AsyncClient(base_url=gateway.url, timeout=120, **more)


async def submit(client: httpx.AsyncClient, page: httpx.Response, action: str, **fields: str) -> httpx.Response:
    """Fill in the page's form with that action, and submit it."""
    form = forms_of(page)[action]
    assert form["method"] == "post"
    return await client.post(action, data=form["fields"] | fields)


async def sign_in(
    client: httpx.AsyncClient, secret: str = ADMIN_KEY, name: str = "", path: str = "/admin"
) -> httpx.Response:
    """Sign in through the form, as `name` or by a key; by default that of the tests' administrator."""
    page = await client.get("/admin/login", params={"next": path})
    return await submit(client, page, "/admin/login", name=name, secret=secret)


@asynccontextmanager
async def with_user(gateway: RunningGateway, name: str, role: Role) -> AsyncIterator[httpx.AsyncClient]:
    """A new user, signed in."""
    order = Order(actor="test", now=1.0)
    await add_user(gateway.serving.database, UserOrder(name=name, password=PASSWORD, role=role), order)
    async with browser(gateway) as client:
        answer = await sign_in(client, PASSWORD, name)
        assert answer.status_code == 303, answer.text
        yield client


def look_again(gateway: RunningGateway) -> None:
    """Expire the short trust in sessions, as if time had passed."""
    for known in gateway.access.sessions._known.values():
        known.looked_at -= RECHECK_SECONDS


def tier_coloured(page: str) -> list[str]:
    """Return what has a tier's colour on a page and is neither a tier's name, nor a bar in a row that begins with one,
    nor the logo."""
    main = page.partition("<main")[2]
    rows = [row for row in re.split(r"<tr>|</table>", main) if not row.lstrip().startswith('<td><span class="tier">')]
    rest = re.sub(r'<span class="tier">.*?</span>', "", "".join(rows))
    return re.findall(r'class="(?:line )?[cs][1-8]"', rest)
