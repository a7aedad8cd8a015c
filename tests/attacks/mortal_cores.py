"""A core of an attacked gateway that ends in the middle of answers: processes at one socket, each after the other."""

import itertools
import multiprocessing
import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.synchronize import Event
from pathlib import Path
from random import Random
from typing import Any

from inference_core.engine.core import Core
from inference_core.protocol import SequenceOutput
from inference_core.transport.listener import UnixListener
from inference_core.transport.server import serve_core
from tests.inference_core.hash_model import hash_core

MODELS = ("smollm2-int4", "smollm2-bf16")
ANSWER_TOKENS = 64
"""Of the answers that it is for: three cores would have to end in one of them before it is given up."""
_STEPS = (ANSWER_TOKENS, 3 * ANSWER_TOKENS)
STEP_SECONDS = 0.003
"""Of a step, as a model takes it: many answers are under way when their core ends."""
_FORKS = multiprocessing.get_context("forkserver")
_FORKS.set_forkserver_preload([__name__])


class _Mortal:
    """A core of the laptop's models that kills its process, or has it drained without grace, after so many steps."""

    def __init__(self, core: Core, number: int, may_end: Event) -> None:
        draw = Random(number)
        self._core, self._may_end, self._pace = core, may_end, threading.Event()
        self._left = draw.randint(*_STEPS)
        self._signal = draw.choice((signal.SIGKILL, signal.SIGTERM))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._core, name)

    def step(self) -> list[SequenceOutput]:
        self._left -= self._may_end.is_set()
        if not self._left:
            os.kill(os.getpid(), self._signal)
        self._pace.wait(STEP_SECONDS)
        return self._core.step()


def _serve(path: Path, number: int, may_end: Event) -> None:
    def load() -> Any:
        return _Mortal(hash_core(*MODELS, slabs=256, max_context=8192, vocab_size=49152), number, may_end)

    serve_core(load, UnixListener(path), grace_seconds=0.0)


class MortalCores:
    """Of hash models, whose next token shows any token that was lost. None ends before `let_end`."""

    def __init__(self, path: Path) -> None:
        self._path, self._may_end, self._is_over = path, _FORKS.Event(), False
        self._replacing = threading.Lock()
        self._start(0)
        self._following = threading.Thread(target=self._follow, name="mortal-cores")
        self._following.start()

    def let_end(self, may: bool) -> None:
        """Whether each ends after some steps from now on."""
        (self._may_end.set if may else self._may_end.clear)()

    def close(self) -> None:
        with self._replacing:
            self._is_over = True
            self._process.kill()
        self._following.join()

    def _start(self, number: int) -> None:
        self._process = _FORKS.Process(target=_serve, args=(self._path, number, self._may_end), daemon=True)
        self._process.start()

    def _follow(self) -> None:
        for number in itertools.count(1):
            self._process.join()
            with self._replacing:
                if self._is_over:
                    return
                self._start(number)


@contextmanager
def mortal_cores(path: Path) -> Iterator[MortalCores]:
    """Serve at `path` until the block ends."""
    cores = MortalCores(path)
    try:
        yield cores
    finally:
        cores.close()
