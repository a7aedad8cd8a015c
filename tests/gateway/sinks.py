"""Two model servers on loopback: one that a catalogue labels local, and a sink that records all that leaves."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

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

    def write_catalog(self, path: Path, more: str = "") -> Path:
        """Write the catalogue of these servers; `more`: further tables."""
        sink, other = (server.base_url for server in self.servers)
        path.write_text(CATALOG.format(home=self.home.base_url, sink=sink, other=other) + more)
        return path

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
