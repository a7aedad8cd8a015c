"""The sign-in of a real gateway process under attack: forged forms and addresses, guessed and flooding passwords."""

import asyncio
import hashlib
import hmac
import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import httpx
import pytest

from gateway.tenancy.changes import Order
from gateway.tenancy.users.users import UserOrder, add_user
from quality.store.database import open_database
from tests.attacks.hostile_pages import failures, status_of
from tests.gateway.edge.test_hostile_clients import resident_bytes
from tests.gateway.operations.dashboard.browsing import PASSWORD, forms_of
from tests.support.administrator import ADMIN_KEY
from tests.support.served import ServedProcess, served
from tests.support.upstream import running_upstream, write_remote_catalog

pytestmark = pytest.mark.processes
TRUSTED, DIRECT = {"AIO_TRUSTED_PROXIES": "localhost, 10.9.0.0/16"}, {"AIO_TRUSTED_PROXIES": ""}


def gateway(data: Path, environment: dict[str, str]) -> Iterator[ServedProcess]:
    with running_upstream() as upstream:
        catalog = write_remote_catalog(data / "catalog.toml", upstream.base_url)
        with served(data, data / "cache", "--catalog", str(catalog), environment=environment) as process:
            yield process


@pytest.fixture(scope="module")
def direct(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedProcess]:
    """Believes no proxy."""
    yield from gateway(tmp_path_factory.mktemp("direct"), DIRECT)


@pytest.fixture(scope="module")
def proxied_data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("proxied")


@pytest.fixture(scope="module")
def proxied(proxied_data: Path) -> Iterator[ServedProcess]:
    """Believes the tests, which are its proxy."""
    yield from gateway(proxied_data, TRUSTED)


def attempt(aio: ServedProcess, secret: str, name: str = "", **headers: str) -> httpx.Response:
    """Fill in the sign-in form in a fresh browser."""
    sent = {header.replace("_", "-"): value for header, value in headers.items()}
    with httpx.Client(base_url=aio.url, timeout=60, headers=sent) as client:
        form = forms_of(client.get("/admin/login"))["/admin/login"]["fields"]
        return client.post("/admin/login", data=form | {"name": name, "secret": secret})


def recorded(aio: ServedProcess) -> list[dict[str, Any]]:
    """Return the sign-ins in the audit trail, newest first."""
    rows = aio.admin.get("/admin/api/transitions", params={"limit": 1000}).raise_for_status().json()["rows"]
    return [row for row in rows if row["action"].startswith("session.")]


def test_without_a_cookie_no_token_is_right(direct: ServedProcess) -> None:
    constant = hmac.new(b"", b"csrf", hashlib.sha256).hexdigest()
    for cookie in ({}, {"cookie": "aio_session="}, {"cookie": "consent=yes"}):
        for token in (constant, "", "0" * 64):
            form = {"csrf_token": token, "secret": ADMIN_KEY}
            refused = httpx.post(f"{direct.url}/admin/login", data=form, headers=cookie)
            assert refused.status_code == 403
            # No session of the key begins; the form to try again has a cookie and a token of its own.
            again = forms_of(refused)["/admin/login"]["fields"] | {"secret": ADMIN_KEY}
            fresh = {"cookie": refused.headers["set-cookie"].partition(";")[0]}
            assert httpx.post(f"{direct.url}/admin/login", data=again, headers=fresh).status_code == 303
        for path in ("/admin/logout", "/admin/users", "/v1/admin/reload"):
            answer = httpx.post(f"{direct.url}{path}", data={"csrf_token": constant}, headers=cookie)
            assert answer.status_code in (303, 401)


def test_a_forged_address_is_not_recorded_and_has_no_limit_of_its_own(direct: ServedProcess) -> None:
    statuses = Counter(
        attempt(
            direct,
            "wrong",
            x_forwarded_for=f"203.0.113.{number}",
            forwarded=f"for=203.0.113.{number}",
            x_real_ip=f"203.0.113.{number}",
        ).status_code
        for number in range(25)
    )
    assert statuses == {401: 20, 429: 5}
    assert {row["details"]["from"] for row in recorded(direct)} == {"127.0.0.1"}
    assert attempt(direct, ADMIN_KEY).status_code == 303
    cookie = attempt(direct, ADMIN_KEY, x_forwarded_proto="https", forwarded="proto=https").headers["set-cookie"]
    assert "Secure" not in cookie


def test_a_trusted_proxy_names_the_client_and_what_the_client_adds_is_ignored(proxied: ServedProcess) -> None:
    for number in range(25):
        # What the client forges comes first; both proxies append.
        forged = f"198.51.100.{number}, 203.0.113.7, 10.9.1.1"
        status = attempt(proxied, "wrong", x_forwarded_for=forged, forwarded="for=198.51.100.1").status_code
        assert status == (401 if number < 20 else 429)
    assert attempt(proxied, "wrong", x_forwarded_for="203.0.113.8").status_code == 401
    assert attempt(proxied, "wrong", forwarded='for=1.2.3.4, for="[2001:db8::1]:99"').status_code == 401
    assert attempt(proxied, "wrong", x_forwarded_for="203.0.113.9, no address").status_code == 401
    found = [row["details"]["from"] for row in recorded(proxied)]
    assert found[:3] == ["127.0.0.1", "2001:db8::1", "203.0.113.8"]
    assert set(found[3:]) == {"203.0.113.7"}


def test_an_ipv6_client_has_one_limit_for_its_network(proxied: ServedProcess) -> None:
    statuses = Counter(
        attempt(proxied, "wrong", x_forwarded_for=f"2001:db8:1:2::{number:x}").status_code for number in range(22)
    )
    assert statuses == {401: 20, 429: 2}
    assert attempt(proxied, "wrong", x_forwarded_for="2001:db8:1:3::1").status_code == 401


async def with_olga(data: Path) -> None:
    """Add the user to the gateway of this folder."""
    database = open_database(f"sqlite+aiosqlite:///{data / 'aio.sqlite3'}")
    await add_user(database, UserOrder(name="olga", password=PASSWORD, role="viewer"), Order(actor="test", now=1.0))
    await database.dispose()


def test_a_flood_of_passwords_takes_little_memory_and_keeps_no_known_device_out(
    proxied: ServedProcess, proxied_data: Path
) -> None:
    asyncio.run(with_olga(proxied_data))
    over, readings = threading.Event(), [0]

    def watch() -> None:
        while not over.wait(0.02):
            assert httpx.get(f"{proxied.url}/health/live", timeout=60).status_code == 200
            readings.append(resident_bytes(proxied))

    with httpx.Client(base_url=proxied.url, timeout=60) as known, ThreadPoolExecutor(201) as threads:
        form = forms_of(known.get("/admin/login"))["/admin/login"]["fields"] | {"name": "olga", "secret": PASSWORD}
        guess = urlencode(form | {"secret": "a wrong password"}).encode()
        head = (
            f"POST /admin/login HTTP/1.1\r\nHost: localhost\r\nCookie: aio_session={known.cookies['aio_session']}\r\n"
            f"Content-Type: application/x-www-form-urlencoded\r\nContent-Length: {len(guess)}\r\n"
        ).encode()
        assert known.post("/admin/login", data=form).status_code == 303
        form |= {"csrf_token": forms_of(known.get("/admin/requests"))["/admin/logout"]["fields"]["csrf_token"]}
        before = resident_bytes(proxied)
        watching = threads.submit(watch)
        # Each of another address and of another account, so that no limit holds.
        flood = [
            head
            + f"X-Forwarded-For: 192.0.2.{number}\r\n\r\n".encode()
            + guess.replace(b"name=olga", f"name=n{number:03}".encode())
            for number in range(200)
        ]
        guesses = [threads.submit(status_of, proxied.url, sent) for sent in flood]
        assert known.post("/admin/login", data=form).status_code == 303
        statuses = Counter(found.result() for found in guesses)
        over.set()
        watching.result()
    assert set(statuses) == {401, 503}
    # While it is checked, one password of unknown devices takes 64 MiB, and one of known devices.
    assert max(readings) - before < (2 * 64 + 64) * 2**20


@pytest.mark.parametrize("host", [b"[", b"[::1", b"[]", b"[127.0.0.1]", b"a:99999", b"a:b", b"a b", b"\xff", b"a/b"])
def test_an_invalid_host_header_is_refused(direct: ServedProcess, host: bytes) -> None:
    for path in (b"/", b"/admin/login", b"/admin/oidc/login", b"/v1/models"):
        assert status_of(direct.url, b"GET " + path + b" HTTP/1.1\r\nHost: " + host + b"\r\n\r\n") == 400
    twice = b"GET /admin/login HTTP/1.1\r\nHost: localhost\r\nHost: example.com\r\n\r\n"
    assert status_of(direct.url, twice) == 400


def test_a_page_wanted_in_any_script_follows_a_sign_in(direct: ServedProcess) -> None:
    for wanted in ("/admin/requests?tag=日本", "/admin/requests?tag=é", "/admin/😀"):
        with httpx.Client(base_url=direct.url, timeout=60) as client:
            page = client.get("/admin/login", params={"next": wanted})
            form = forms_of(page)["/admin/login"]["fields"] | {"secret": ADMIN_KEY}
            let_in = client.post("/admin/login", data=form)
            assert let_in.status_code == 303
            assert httpx.URL(let_in.headers["location"]) == httpx.URL(wanted)


def test_no_hostile_value_makes_the_dashboard_fail(direct: ServedProcess) -> None:
    statuses, failed = failures(direct, 0.0025)
    assert sum(statuses.values()) > 300
    assert not failed
