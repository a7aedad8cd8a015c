"""An application that the first request for one of its paths makes."""

import asyncio

import httpx
import pytest
from litestar import Litestar, get
from litestar.datastructures import State

from gateway.edge.asgi import LATE_APP, HttpRequest, LateApp, below


@get("/near")
async def near() -> str:
    return "near"


@get(["/", "/far", "/far/{name:str}"])
async def far(request: HttpRequest, state: State) -> dict[str, str]:
    return {"path": request.url.path, "query": request.url.query, "state": state["greeting"]}


class Made:
    """Applications behind one in front; the first attempt fails if `broken`."""

    def __init__(self, *, broken: bool = False) -> None:
        self.count, self.broken = 0, broken
        routes = [near, below("/"), below("/far")]
        state = State({"greeting": "hello", LATE_APP: LateApp(self.make)})
        self.front = Litestar(routes, state=state, openapi_config=None)

    def make(self, state: State) -> Litestar:
        self.count += 1
        if self.broken:
            self.broken = False
            raise ImportError("broken")
        return Litestar([far], state=state, openapi_config=None)

    def client(self) -> httpx.AsyncClient:
        transport = httpx.ASGITransport(self.front, raise_app_exceptions=False)
        return httpx.AsyncClient(transport=transport, base_url="http://localhost")


@pytest.mark.asyncio
async def test_it_is_made_once_by_the_first_requests_for_its_paths() -> None:
    made = Made()
    async with made.client() as client:
        assert (await client.get("/near")).text == "near"
        assert made.count == 0
        answers = await asyncio.gather(*(client.get(path) for path in ("/", "/far", "/far/", "/far/a%20b?c=d")))
    assert made.count == 1
    seen = [tuple(answer.json().values()) for answer in answers]
    assert seen == [("/", "", "hello"), ("/far", "", "hello"), ("/far", "", "hello"), ("/far/a b", "c=d", "hello")]


@pytest.mark.asyncio
async def test_what_it_lacks_is_not_found_and_methods_are_its_own() -> None:
    async with Made().client() as client:
        assert (await client.get("/far/a/b")).status_code == 404
        assert (await client.get("/farther")).status_code == 404
        assert (await client.post("/far")).status_code == 405
        assert (await client.get("/elsewhere")).status_code == 404


@pytest.mark.asyncio
async def test_a_failure_to_make_it_fails_that_request_alone() -> None:
    made = Made(broken=True)
    async with made.client() as client:
        assert (await client.get("/far")).status_code == 500
        assert (await client.get("/far")).status_code == 200
