"""What servers were found to refuse, as an operator sees and forgets it."""

import pytest

from tests.support.app import RunningGateway
from tiers.remote.refusals import REFUSALS, ServedModel

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest.mark.parametrize("query", ["", "?tier=small"])
async def test_an_operator_sees_and_forgets_what_servers_refuse(aio: RunningGateway, query: str) -> None:
    REFUSALS.forget()
    REFUSALS.learn(ServedModel("small", "http://127.0.0.1:9/v1", "chat/completions", "m"), frozenset({"top_p", "seed"}))
    try:
        (shown,) = (await aio.http.get("/v1/admin/refusals")).json()["refusals"]
        assert (shown["tier"], shown["model"], shown["parameters"]) == ("small", "m", ["seed", "top_p"])
        other = (await aio.http.delete("/v1/admin/refusals?tier=large")).json()
        assert other == {"forgotten": 0}
        assert (await aio.http.delete(f"/v1/admin/refusals{query}")).json() == {"forgotten": 1}
        assert (await aio.http.get("/v1/admin/refusals")).json() == {"refusals": []}
    finally:
        REFUSALS.forget()
