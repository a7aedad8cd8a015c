"""A tool loop of LlamaIndex's agent, streamed."""

import asyncio

from documented import llm
from llama_index.core.agent.workflow import FunctionAgent


def add(a: int, b: int) -> int:
    """Adds two numbers."""
    return a + b


async def run() -> None:
    """Ask, and show the last answer."""
    handler = FunctionAgent(tools=[add], llm=llm).run("Add 1 and 2, 3 and 4, then both sums.")
    async for _ in handler.stream_events():
        pass
    print(await handler)


asyncio.run(run())
