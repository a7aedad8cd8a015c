"""Model servers on loopback, one labelled local and sinks that record all that leaves, and a gateway before them."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx

from tests.support.app import RunningGateway, gateway_of
from tests.support.upstream import Call, LoopbackServer

# Tier 1 is at home, 2 and 3 elsewhere; 3 has two replicas that hedge.
CATALOG = """
name = "sinks"

[[tiers]]
name = "home"
local = true
price = {{ input_usd_per_million = 0.1, output_usd_per_million = 0.3 }}
max_tokens = 512
remote = {{ base_url = "{home}", model = "home", max_context = 4096 }}

[[tiers]]
name = "away"
price = {{ input_usd_per_million = 1.0, output_usd_per_million = 3.0 }}
max_tokens = 512
remote = {{ base_url = "{sink}", model = "away", max_context = 4096 }}

[[tiers]]
name = "farther"
price = {{ input_usd_per_million = 10.0, output_usd_per_million = 30.0 }}
max_tokens = 512

[tiers.remote]
base_urls = ["{sink}", "{other}"]
model = "farther"
max_context = 4096
balancing = {{ hedging = true }}
"""


class Sinks:
    """`home` answers unless it `fails`; `away` is every prompt that a server elsewhere was sent."""

    def __init__(self) -> None:
        self.fails = False
        self.home = LoopbackServer(self._at_home)
        self.servers = [LoopbackServer(answered), LoopbackServer(answered)]

    @property
    def away(self) -> list[dict[str, Any]]:
        """The bodies that left."""
        return [call.body for server in self.servers for call in server.calls]

    def reset(self) -> None:
        """Forget what was asked, and answer again."""
        self.fails = False
        for server in (self.home, *self.servers):
            server.calls.clear()

    def catalog(self, more: str = "", local: str = "") -> str:
        """The catalogue of these servers; `more`: further tables, `local`: further lines of the tier at home."""
        sink, other = (server.base_url for server in self.servers)
        text = CATALOG.format(home=self.home.base_url, sink=sink, other=other) + more
        return text.replace("local = true", f"local = true\n{local}")

    async def _at_home(self, call: Call) -> None:
        if self.fails:
            # A failure of this answer alone: the tier stays healthy.
            await call.begin(200, "text/html")
            await call.send(b"<html>")
        else:
            await answered(call)


async def answered(call: Call) -> None:
    """Say seven, streamed or whole."""
    await call.say("7", usage={"prompt_tokens": 9, "completion_tokens": 1, "total_tokens": 10})


@asynccontextmanager
async def running_sinks() -> AsyncIterator[Sinks]:
    """Serve until the block ends."""
    sinks = Sinks()
    async with sinks.home, sinks.servers[0], sinks.servers[1]:
        yield sinks


CHAT = "/v1/chat/completions"
OPEN = [{"role": "user", "content": "What is 3 + 4?"}]


class SinkGateway:
    """A gateway before these servers, of whose tiers the classifier chooses as the test says."""

    def __init__(self, aio: RunningGateway, sinks: Sinks) -> None:
        self.aio, self.sinks = aio, sinks

    def reset(self, *p_ok: float) -> None:
        """Forget what was asked, and let the classifier say this of the tiers."""
        self.sinks.reset()
        self.aio.reset()
        self.aio.classifier.p_ok = p_ok

    @property
    def left(self) -> list[bytes]:
        """The bytes that left."""
        return [call.raw for server in self.sinks.servers for call in server.calls]

    async def chat(self, messages: Any = None, headers: dict[str, str] | None = None, **body: Any) -> httpx.Response:
        asked = {"model": "auto", "messages": messages or OPEN} | body
        return await self.aio.http.post(CHAT, json=asked, headers=headers)

    async def at_home(self, messages: Any = None, headers: dict[str, str] | None = None, **body: Any) -> bool:
        """Ask, and return whether the local tier answered and nothing left."""
        before = len(self.sinks.away)
        answer = await self.chat(messages, headers, **body)
        assert answer.status_code == 200, answer.text
        stayed = answer.headers["x-aio-tier"] == "1"
        assert stayed == (len(self.sinks.away) == before)
        return stayed


@asynccontextmanager
async def sink_gateway(folder: Path, more: str = "", local: str = "") -> AsyncIterator[SinkGateway]:
    """Serve until the block ends; the catalogue is that of `Sinks.catalog`."""
    async with running_sinks() as sinks, gateway_of(folder, sinks.catalog(more, local)) as aio:
        yield SinkGateway(aio, sinks)
