"""A core takes the socket of another over once it has loaded; connections to the other stay."""

import threading
from pathlib import Path

from inference_core.engine.core import Core
from inference_core.protocol import AddRequest, SamplingParams
from inference_core.transport.listener import Listener, ReplacingListener, UnixListener
from inference_core.transport.server import CoreServer
from inference_core.transport.unix_socket import SocketCoreClient
from tests.inference_core.hash_model import hash_core


def server(listener: Listener, model: str, may_load: threading.Event) -> CoreServer:
    def load() -> Core:
        may_load.wait()
        return hash_core(model)

    return CoreServer(load, listener)


async def connected(path: Path) -> SocketCoreClient:
    client = SocketCoreClient(path)
    await client.start()
    return client


async def finished(client: SocketCoreClient, model: str) -> str | None:
    sampling = SamplingParams(temperature=0.0, max_tokens=2)
    request = AddRequest(request_id="a", model=model, prompt_token_ids=[1, 2], sampling=sampling)
    return [output.finish_reason async for output in client.generate(request)][-1]


async def test_a_core_takes_a_socket_over_once_it_has_loaded(tmp_path: Path) -> None:
    path, now, later = tmp_path / "core.sock", threading.Event(), threading.Event()
    now.set()
    old, new = server(UnixListener(path), "old", now), server(ReplacingListener(path), "new", later)
    await old.start()
    first = await connected(path)
    await new.start()
    meanwhile = await connected(path)
    assert list(meanwhile.models) == ["old"]
    later.set()
    waiting = await connected(Path(f"{path}.next"))
    second = await connected(path)
    assert list(second.models) == list(waiting.models) == ["new"]
    assert (await finished(first, "old"), await finished(second, "new")) == ("length", "length")
    for client in (first, meanwhile):
        await client.close()
    await old.stop()
    third = await connected(path)
    assert await finished(third, "new") == "length"
    for client in (waiting, second, third):
        await client.close()
    await new.stop()
    assert not path.exists()
