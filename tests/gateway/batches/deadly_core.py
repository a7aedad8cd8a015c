"""A core in its own process that ends, like a crash in native code, on requests of one length."""

import signal
from multiprocessing import get_context
from pathlib import Path
from threading import Event, Thread
from typing import Any

from inference_core.engine.core import Core
from inference_core.protocol import AddRequest
from inference_core.transport.listener import UnixListener
from inference_core.transport.server import serve_core
from tests.inference_core.hash_model import hash_core

DEADLY_TOKENS = 13


class DeadlyCore:
    """The laptop catalogue's models by name, each a hash model, in a core that a request for 13 tokens kills."""

    def __init__(self, core: Core) -> None:
        self._core = core

    def __getattr__(self, name: str) -> Any:
        return getattr(self._core, name)

    def add(self, request: AddRequest) -> None:
        if request.sampling.max_tokens == DEADLY_TOKENS:
            signal.raise_signal(signal.SIGKILL)
        self._core.add(request)


def load() -> Any:
    names = ("smollm2-int4", "smollm2-bf16")
    return DeadlyCore(hash_core(*names, slabs=256, max_context=8192, vocab_size=49152))


class KeptCore:
    """A deadly core at `path`, restarted whenever it ends, as by a supervisor; `deaths` counts its ends."""

    def __init__(self, path: Path) -> None:
        self.deaths = 0
        self._path, self._stopping = path, Event()
        self._context = get_context("spawn")
        self._process = self._started()
        self._keeping = Thread(target=self._keep)
        self._keeping.start()

    def stop(self) -> None:
        """Stop it permanently."""
        self._stopping.set()
        while self._keeping.is_alive():
            self._process.kill()
            self._keeping.join(0.05)

    def _started(self) -> Any:
        process = self._context.Process(target=serve_core, args=(load, UnixListener(self._path)))
        process.start()
        return process

    def _keep(self) -> None:
        while True:
            self._process.join()
            if self._stopping.is_set():
                return
            self.deaths += 1
            self._process = self._started()
