"""A gateway over three remote tiers of different capabilities, whose server notes what it gets."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from tests.support.app import RunningGateway, gateway_of
from tests.support.upstream import Call, LoopbackServer

# Two tiers for text, the second on a kind of server with fields of its own; the third reads images and audio, too.
CATALOG = """
[[tiers]]
name = "small"
url = "{url}"
model = "small-model"
price = {{ input_usd_per_million = 0.1, output_usd_per_million = 0.1 }}
capabilities = {{ tools = false, json_schema = false, logprobs = false }}

[[tiers]]
name = "own-server"
price = {{ input_usd_per_million = 1.0, output_usd_per_million = 1.0 }}
remote = {{ base_url = "{url}", model = "own-model", kind = "vllm" }}

[[tiers]]
name = "large"
url = "{url}"
model = "large-model"
price = {{ input_usd_per_million = 10.0, output_usd_per_million = 10.0 }}
capabilities = {{ vision = true, audio = true, files = true }}
"""
USAGE = {"prompt_tokens": 10, "completion_tokens": 2, "total_tokens": 12}


class Noting:
    """Answers each request alike; `bodies`: what was received, oldest first."""

    def __init__(self) -> None:
        self.bodies: list[dict[str, Any]] = []

    async def answer(self, call: Call) -> None:
        self.bodies.append(call.body)
        if not call.body.get("stream"):
            await call.whole("A cat.", USAGE, reasoning_content="Whiskers.")
            return
        await call.begin()
        await call.chunk(reasoning_content="Whiskers.")
        await call.chunk("A cat.")
        await call.end(USAGE)


@asynccontextmanager
async def capable_tiers(folder: Path, head: str = "", **fields: Any) -> AsyncIterator[tuple[RunningGateway, Noting]]:
    """Serve until the block ends. `head`: the catalogue's own first lines; `fields`: further settings."""
    noting = Noting()
    async with LoopbackServer(noting.answer) as server:
        catalog = 'name = "capable"\n' + head + CATALOG.format(url=server.base_url)
        async with gateway_of(folder, catalog, protocol="httptools", **fields) as gateway:
            yield gateway, noting
