"""A tool loop of the agents SDK, by its default the responses API, streamed."""

import asyncio

from agents import Runner, function_tool
from documented import agent


@function_tool
def add(a: int, b: int) -> int:
    """Adds two numbers."""
    return a + b


async def run() -> None:
    """Ask, and show the last answer."""
    asked = Runner.run_streamed(agent.clone(tools=[add]), "Add 1 and 2, 3 and 4, then both sums.")
    async for _ in asked.stream_events():
        pass
    print(asked.final_output)


asyncio.run(run())
