"""The gateway in this process, over a core that computes nothing."""

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial

import uvicorn

from benchmarks.gateway.idle_core import IdleCore
from gateway.app import create_app
from gateway.settings import Settings
from inference_core.protocol import ModelInfo
from inference_core.transport.core_thread import ThreadCoreClient
from tiers.catalog.load import load_catalog


@asynccontextmanager
async def served(settings: Settings) -> AsyncIterator[int]:
    """Serve the gateway on this thread's event loop, over cores that name the catalogue's models; yields its port."""
    catalog = load_catalog(settings.catalog)

    def load(core: str) -> IdleCore:
        return IdleCore(
            [
                ModelInfo(name=name, model_path=path, max_context=8192, vocab_size=2, weight_bytes=0, compute="none")
                for name, path in catalog.model_paths.items()
                if catalog.core_of(name) == core
            ]
        )

    app = create_app(settings, cores={name: ThreadCoreClient(partial(load, name)) for name in catalog.core_names})
    listener = socket.create_server(("127.0.0.1", 0))
    server = uvicorn.Server(uvicorn.Config(app, log_config=None, access_log=False, http="httptools", lifespan="on"))
    serving = asyncio.create_task(server.serve(sockets=[listener]))
    while not server.started and not serving.done():  # noqa: ASYNC110 - uvicorn has no event for it
        await asyncio.sleep(0.01)
    try:
        yield listener.getsockname()[1]
    finally:
        server.should_exit = True
        await serving
