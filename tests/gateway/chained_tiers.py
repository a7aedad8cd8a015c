"""A gateway over three remote tiers and further targets, whose server does by model what a test says."""

from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx

from tests.support.app import RunningGateway, gateway_of
from tests.support.upstream import Call, LoopbackServer

Handler = Callable[[Call], Coroutine[Any, Any, None]]

TIERS = """
[[tiers]]
name = "small"
url = "{url}"
model = "small-model"
price = {{ input_usd_per_million = 1.0, output_usd_per_million = 1.0 }}
{small}

[[tiers]]
name = "medium"
url = "{url}"
model = "medium-model"
price = {{ input_usd_per_million = 10.0, output_usd_per_million = 10.0 }}
{medium}

[[tiers]]
name = "large"
url = "{url}"
model = "large-model"
price = {{ input_usd_per_million = 100.0, output_usd_per_million = 100.0 }}
{large}
"""
BACKUP = """
[[targets]]
name = "backup"
url = "{url}"
model = "backup-model"
price = {{ input_usd_per_million = 7.0, output_usd_per_million = 7.0 }}
"""
SECOND = """
[[targets]]
name = "second"
url = "{url}"
model = "second-model"
price = {{ input_usd_per_million = 5.0, output_usd_per_million = 5.0 }}
"""
USAGE = {"prompt_tokens": 10, "completion_tokens": 2, "total_tokens": 12}
HELLO = [{"role": "user", "content": "Say hello."}]


async def well(call: Call) -> None:
    """Says the model's name."""
    await call.say(f"I am {call.body['model']}", usage=USAGE)


async def broken(call: Call) -> None:
    await call.reply(503, {"error": {"message": "out of memory"}})


async def busy(call: Call) -> None:
    await call.send(b"HTTP/1.1 429 X\r\nretry-after: 30\r\ncontent-length: 2\r\n\r\n{}")


async def wrong_request(call: Call) -> None:
    await call.reply(400, {"error": {"message": "too hot", "param": "temperature"}})


async def reset(call: Call) -> None:
    call.writer.transport.abort()


async def break_before_a_word(call: Call) -> None:
    """A stream that names its role, as OpenAI's do, and breaks before its first word."""
    await call.begin()
    await call.chunk(role="assistant")
    call.writer.transport.abort()


async def break_after_a_word(call: Call) -> None:
    await call.begin()
    await call.chunk("Hel", role="assistant")
    call.writer.close()


class Servers:
    """`by_model`: what a model does, others answer well; `asked`: the models that were asked, in order."""

    def __init__(self) -> None:
        self.by_model: dict[str, Handler] = {}
        self.asked: list[str] = []
        self.keys: list[str] = []
        self.url = ""

    async def __call__(self, call: Call) -> None:
        self.asked.append(call.body["model"].removesuffix("-model"))
        self.keys.append(call.headers.get("authorization", "").removeprefix("Bearer "))
        await self.by_model.get(self.asked[-1], well)(call)

    def catalog(self, more: str = BACKUP, *, small: str = "", medium: str = "", large: str = "") -> str:
        """Three tiers with these further lines, and `more`."""
        return (more + TIERS).format(url=self.url, small=small, medium=medium, large=large)


@asynccontextmanager
async def chained_tiers(
    folder: Path, more: str = BACKUP, *, small: str = "", medium: str = "", large: str = "", **fields: Any
) -> AsyncIterator[tuple[RunningGateway, Servers]]:
    """Serve until the block ends. `fields`: further settings."""
    servers = Servers()
    async with LoopbackServer(servers) as server:
        servers.url = server.base_url
        catalog = servers.catalog(more, small=small, medium=medium, large=large)
        async with gateway_of(folder, catalog, **fields) as gateway:
            gateway.classifier.p_ok = (0.999, 0.999, 1.0)
            yield gateway, servers


async def ask(gateway: RunningGateway, headers: dict[str, str] | None = None, **fields: Any) -> httpx.Response:
    """The answer to a chat that no cache answers."""
    return await gateway.ask(headers=headers, **{"temperature": 0.5} | fields)
