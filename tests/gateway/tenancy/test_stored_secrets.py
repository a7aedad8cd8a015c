"""What a thief of the data folder learns of keys: nothing by which a key could be used, guessed or recognised."""

from hashlib import sha256
from pathlib import Path

import pytest
from sqlalchemy import select

from gateway.base.settings import Settings
from gateway.tenancy.keys.key_secrets import new_key
from migrations.tables.tenancy import dashboard_sessions
from tests.gateway.operations.dashboard.browsing import browser, look_again, sign_in
from tests.support.app import RunningGateway, running_gateway

PAGE = "/admin/requests"


async def test_nothing_in_the_data_folder_helps_to_find_a_key_of_the_settings(tmp_path: Path) -> None:
    admin, app = new_key()[0], new_key()[0]
    settings = Settings(
        data_dir=str(tmp_path), monitor=False, admin_keys=f"ann={admin}", api_keys=f"app={app}", log_requests=True
    )
    async with running_gateway(settings) as gateway, browser(gateway) as client:
        assert (await sign_in(client, admin)).status_code == 303
        assert (await client.get(PAGE)).status_code == 200
        chat = {"model": "tier-1", "messages": [{"role": "user", "content": "hello"}]}
        answer = await gateway.http.post(
            "/v1/chat/completions", json=chat, headers={"authorization": f"Bearer {app}", "x-aio-cache": "off"}
        )
        assert answer.status_code == 200
    kept = everything_in(tmp_path)
    assert b"ann" in kept
    for key in (admin, app):
        secret = key.removeprefix("sk-aio-")
        pieces = {secret[at : at + 6] for at in range(len(secret) - 5)}
        digest = sha256(key.encode())
        traces = [*(piece.encode() for piece in pieces), digest.digest(), digest.hexdigest().encode()]
        assert [trace for trace in traces if trace in kept] == []


async def test_a_session_row_holds_no_part_and_no_hash_of_its_key_and_still_ends_with_it(tmp_path: Path) -> None:
    root = new_key()[0]
    settings = Settings(data_dir=str(tmp_path), monitor=False, admin_keys=f"root={root}")
    async with running_gateway(settings) as gateway, browser(gateway) as client:
        headers = {"authorization": f"Bearer {root}"}
        order = {"name": "clerk", "terms": {"scopes": ["viewer"]}}
        made = (await gateway.http.post("/admin/api/keys", json=order, headers=headers)).json()
        assert (await sign_in(client, made["key"])).status_code == 303

        row = await session_row(gateway)

        assert sha256(made["key"].encode()).hexdigest() not in row
        secret = made["key"].removeprefix("sk-aio-")
        assert not [at for at in range(len(secret) - 3) if secret[at : at + 4] in row]
        assert made["key_id"] in row
        # After a rotation the old secret, and with it the session, is good for its grace.
        rotate = f"/admin/api/keys/{made['key_id']}/rotate"
        for grace, status in ((3600, 200), (0, 303)):
            rotated = await gateway.http.post(rotate, json={"grace_seconds": grace}, headers=headers)
            assert rotated.status_code == 200, rotated.text
            look_again(gateway)
            assert (await client.get(PAGE)).status_code == status


@pytest.mark.parametrize("column", ["key_id", "key_proof", "session_id"])
async def test_a_thief_of_session_rows_cannot_make_a_cookie_of_them(tmp_path: Path, column: str) -> None:
    root = new_key()[0]
    settings = Settings(data_dir=str(tmp_path), monitor=False, admin_keys=f"root={root}")
    async with running_gateway(settings) as gateway, browser(gateway) as client:
        await sign_in(client, root)
        async with gateway.serving.database.connect() as connection:
            stolen = await connection.scalar(select(dashboard_sessions.c[column]))
        async with browser(gateway, cookies={"aio_session": stolen}) as thief:
            assert (await thief.get(PAGE)).status_code == 303


async def session_row(gateway: RunningGateway) -> str:
    """The only session as text."""
    async with gateway.serving.database.connect() as connection:
        return repr((await connection.execute(select(dashboard_sessions))).mappings().one())


def everything_in(folder: Path) -> bytes:
    """The bytes of all its files."""
    return b"".join(path.read_bytes() for path in folder.rglob("*") if path.is_file())
