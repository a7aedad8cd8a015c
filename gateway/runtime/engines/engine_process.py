"""Keeps one engine running: found, given its model, started, watched, and restarted when it dies or hangs.

Its loopback port stays reserved while it is stopped and restarted. The model of an `ollama serve` that AIO started is
pulled if it is not there, and loaded.
"""

import asyncio
import logging
import os
import random
import secrets
import shutil
import socket
import sys
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import msgspec

from gateway.runtime.engines.engine_child import EngineChild, EngineLog, EngineProblem, pull_model
from inference_core.errors import ModelFileError
from inference_core.io.files import JSON_ERRORS
from inference_core.loaders.hub_model import parse_hub_model, resolve_model_path
from tiers.engines import (
    HOST,
    PROGRAMS,
    EngineProgram,
    EngineSpec,
    EngineState,
    EngineStatus,
    child_environment,
    command_line,
    served_name,
)
from tiers.remote.http_exchange import IDENTITY, bounded_answer, lines_of, pieces_of
from tiers.server_words import context_of, one_line


class HeldPort:
    """A bound socket that never listens: the kernel gives its port to no other program, and a server that is given
    the port can still listen there. Only Linux allows that; elsewhere the port is merely one that was free."""

    def __init__(self) -> None:
        self._socket = socket.socket()
        self.number = 0
        self.renew()

    def renew(self) -> None:
        """Take another port: the server could not listen on this one."""
        other = _bound()
        self._socket.close()
        self._socket, self.number = other, int(other.getsockname()[1])
        if sys.platform != "linux":
            other.close()

    def close(self) -> None:
        self._socket.close()


def _bound() -> socket.socket:
    held = socket.socket()
    # Servers set one option or the other, and the kernel lets them share the port only with a socket that has theirs.
    held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    held.bind((HOST, 0))
    return held


_SAY_EVERY_SECONDS = 2.0
_MOST_BYTES, _MOST_LINE_BYTES = 16 * 2**20, 64 * 1024
# Its engine's own time limit for a start is shorter.
_MOST_SECONDS = 86_400.0


class _Progress(msgspec.Struct):
    status: str = ""
    total: int = 0
    completed: int = 0
    error: str = ""


class _Failure(msgspec.Struct):
    error: str = ""


async def load_ollama_model(client: httpx.AsyncClient, model: str, say: Callable[[str], None]) -> None:
    """Pull `model` unless it is there, then load it. `say` gets lines of progress. Raises `EngineProblem`."""
    try:
        shown, reason = await _post(client, "/api/show", {"model": model})
        if shown.status_code == 404:
            await _pull(client, model, say)
        elif shown.status_code != 200:
            raise EngineProblem(f"ollama does not know the model {model}: {_error(reason)}")
        say(f"ollama loads {model}")
        # Without a prompt it only loads.
        loaded, reason = await _post(client, "/api/generate", {"model": model, "keep_alive": -1})
        if loaded.status_code != 200:
            raise EngineProblem(f"ollama cannot load {model}: {_error(reason)}")
    except httpx.HTTPError as error:
        raise EngineProblem(f"ollama stopped answering while it loaded {model}: {type(error).__name__}") from error


async def _post(client: httpx.AsyncClient, path: str, body: dict[str, Any]) -> tuple[httpx.Response, bytes]:
    return await bounded_answer(client, client.build_request("POST", path, json=body), _MOST_BYTES, _MOST_SECONDS)


async def _pull(client: httpx.AsyncClient, model: str, say: Callable[[str], None]) -> None:
    said = -_SAY_EVERY_SECONDS
    done = False
    async with client.stream("POST", "/api/pull", json={"model": model}, headers=IDENTITY) as response:
        async for line in lines_of(pieces_of(response), _MOST_LINE_BYTES):
            try:
                progress = msgspec.json.decode(line, type=_Progress)
            except JSON_ERRORS:
                continue
            if progress.error:
                raise EngineProblem(
                    f"ollama cannot pull {model}: {one_line(progress.error)}. Check the name at "
                    "https://ollama.com/library; without network, copy the models folder of a machine that has it "
                    "(OLLAMA_MODELS)"
                )
            done = progress.status == "success"
            if progress.total and time.monotonic() - said >= _SAY_EVERY_SECONDS:
                said = time.monotonic()
                share = progress.completed / progress.total
                say(f"ollama pulls {model}: {share:.0%} of {progress.total / 1e9:.2f} GB")
    if not done:
        raise EngineProblem(f"ollama did not finish pulling {model} (status {response.status_code})")


def _error(body: bytes) -> str:
    try:
        return one_line(msgspec.json.decode(body, type=_Failure).error) or "no reason given"
    except JSON_ERRORS:
        return one_line(body[:200].decode(errors="replace"))


log = logging.getLogger(__name__)

Changed = Callable[[EngineStatus], None]
MOST_PAGE_BYTES = 2**20


class Timing(msgspec.Struct, frozen=True, kw_only=True):
    """Seconds, and a count of failed checks. Delays between runs double from `first_delay` to `last_delay`, each
    varied by half, and start over after a run that was ready for `steady`."""

    first_delay: float = 1.0
    last_delay: float = 60.0
    steady: float = 60.0
    poll: float = 0.25
    check_every: float = 5.0
    # SGLang generates a token for its health check, which waits its turn on a busy server.
    check_patience: float = 30.0
    failed_checks: int = 3
    grace: float = 10.0


TIMING = Timing()


def pause_after(failures: int, timing: Timing) -> float:
    """Return the seconds until the next start, after `failures` earlier ones in a row."""
    pause: float = min(timing.first_delay * 2 ** min(failures, 30), timing.last_delay)
    return pause * random.uniform(0.5, 1.0)


class EngineProcess:
    """One engine of the catalogue. `status` is its latest state; `changed` is called with every new one.

    `folder`: where its log goes. `secret`: environment variables that the program does not get.
    """

    def __init__(
        self,
        name: str,
        spec: EngineSpec,
        folder: Path,
        changed: Changed = lambda status: None,
        *,
        secret: Sequence[str] = (),
        timing: Timing = TIMING,
        environ: Mapping[str, str] = os.environ,
    ) -> None:
        self.name, self.spec = name, spec
        self._program: EngineProgram = PROGRAMS[spec.kind]
        self._changed, self._secret, self._timing, self._environ = changed, secret, timing, environ
        self._log = EngineLog(folder / f"engine-{name}.log")
        self._child: EngineChild | None = None
        self._reported = ""
        self.status = EngineStatus(
            state="starting", detail=f"{self._program.name} is starting", program=self._program.name,
            log=str(self._log.path),
        )  # fmt: skip
        changed(self.status)

    async def keep(self) -> None:
        """Run the engine until this is cancelled; then stop it."""
        failures, port = 0, HeldPort()
        try:
            while True:
                ready_at: float | None = None
                try:
                    child, address = await self._started(port)
                    ready_at = time.monotonic()
                    await self._watch(child, address)
                except Exception as error:
                    if not isinstance(error, EngineProblem):
                        log.exception("tier '%s': unexpected failure of its engine", self.name)
                    if ready_at is not None and time.monotonic() - ready_at > self._timing.steady:
                        failures = 0
                    pause = pause_after(failures, self._timing)
                    self._report(error, pause)
                finally:
                    await self._stop_child()
                if ready_at is None:
                    port.renew()
                await asyncio.sleep(pause)
                failures += 1
        finally:
            port.close()
            self._log.close()
            self._set("down", f"{self._program.name} is stopped")

    def kill(self) -> None:
        """End the running program without a grace period."""
        if self._child is not None:
            self._child.kill()

    async def _started(self, port: HeldPort) -> tuple[EngineChild, str]:
        """Start the program and return it with its address once it can answer. Raises `EngineProblem`."""
        path = shutil.which(self._program.name, path=self._environ.get("PATH"))
        if path is None:
            raise EngineProblem(
                f"the program {self._program.name} is not installed or not on PATH; install it: {self._program.install}"
            )
        model = await self._model()
        began, number = time.monotonic(), port.number
        key = secrets.token_hex(16) if self._program.takes_key else ""
        command = command_line(self.spec, path, model, served_name(self.spec.model, self._program), number, key)
        environment = child_environment(self.spec, self._environ, self._secret, number, key)
        self.status = msgspec.structs.replace(self.status, start=self.status.start + 1, key=key)
        self._set("starting", f"{self._program.name} is starting")
        self._log.forget_lines()
        self._log.write(f"--- start {self.status.start}: {' '.join(arg for arg in command if arg != key)}\n".encode())
        log.info("tier '%s': starting %s on port %d, its output is in %s", self.name, path, number, self._log.path)
        self._child = child = await EngineChild.start(command, environment, self._log, self._timing.grace)
        address = f"http://{HOST}:{number}"
        try:
            async with asyncio.timeout(self.spec.start_timeout_seconds), _client(address, key) as client:
                await self._until_healthy(child, client)
                if self._program.form == "name":
                    await self._while_running(child, load_ollama_model(client, self.spec.model, self._say))
                context = await self._context(client)
        except TimeoutError:
            raise EngineProblem(
                f"{self._program.name} was not ready within {self.spec.start_timeout_seconds:g} s "
                f"(start_timeout_seconds){self._last_line()}"
            ) from None
        took = time.monotonic() - began
        self.status = msgspec.structs.replace(self.status, url=f"{address}/v1", context=context)
        self._set("ready", f"{self._program.name} answers")
        log.info("tier '%s': %s is ready on %s after %.1f s", self.name, self._program.name, address, took)
        return child, address

    async def _model(self) -> str:
        """Return the file, folder or name that the program is given, downloaded if need be. Raises `EngineProblem`."""
        if self._program.form == "name":
            return self.spec.model
        if (model := parse_hub_model(self.spec.model)) is not None:
            model = model.at(self.spec.revision) if self.spec.revision else model
            return await pull_model(model, self._program.form, self._log, self._say)
        try:
            return str(await asyncio.to_thread(resolve_model_path, self.spec.model))
        except ModelFileError as error:
            raise EngineProblem(str(error)) from error

    async def _until_healthy(self, child: EngineChild, client: httpx.AsyncClient) -> None:
        """Poll, because the program tells no one that it is ready."""
        while not await self._is_healthy(client):
            await asyncio.wait({child.ended}, timeout=self._timing.poll)
            if child.ended.done():
                raise self._ended(child, "before it was ready")

    async def _while_running(self, child: EngineChild, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        try:
            await asyncio.wait({child.ended, task}, return_when=asyncio.FIRST_COMPLETED)
            if not task.done():
                raise self._ended(child, "before it was ready")
            await task
        finally:
            task.cancel()

    async def _context(self, client: httpx.AsyncClient) -> int | None:
        """Return the longest sequence that the engine reports; None if it reports none that can be read."""
        with suppress(httpx.HTTPError, *JSON_ERRORS):
            request = client.build_request("GET", self._program.context_path)
            response, body = await bounded_answer(client, request, MOST_PAGE_BYTES, self._timing.check_patience)
            if response.status_code == 200:
                return context_of(self._program.context(body))
        return None

    async def _watch(self, child: EngineChild, address: str) -> None:
        """Return never: raises `EngineProblem` once the program has ended or hangs."""
        failed = 0
        async with _client(address, self.status.key) as client:
            while True:
                await asyncio.wait({child.ended}, timeout=self._timing.check_every)
                if child.ended.done():
                    raise self._ended(child, "while it served")
                failed = 0 if await self._is_healthy(client) else failed + 1
                if failed >= self._timing.failed_checks:
                    raise EngineProblem(f"{self._program.name} hangs: {failed} health checks in a row failed")

    async def _is_healthy(self, client: httpx.AsyncClient) -> bool:
        try:
            request = client.build_request("GET", self._program.health)
            response, _ = await bounded_answer(client, request, MOST_PAGE_BYTES, self._timing.check_patience)
            return response.status_code == 200
        except httpx.HTTPError:
            return False

    async def _stop_child(self) -> None:
        if (child := self._child) is not None:
            if self.status.url:
                self.status = msgspec.structs.replace(self.status, url="", context=None)
                self._set("starting", f"{self._program.name} is being stopped")
            await child.stop()
            self._child = None

    def _ended(self, child: EngineChild, when: str) -> EngineProblem:
        status = child.ended.result()
        how = f"was ended by signal {status - 128}" if status > 128 else f"ended with status {status}"
        return EngineProblem(f"{self._program.name} {how} {when}{self._last_line()}")

    def _last_line(self) -> str:
        lines = self._log.last_lines(1)
        return f"; it wrote: {lines[0]}" if lines else ""

    def _report(self, problem: Exception, pause: float) -> None:
        """Publish and log a failure; one that keeps the program from being started, once in a row."""
        detail = f"{problem}; trying again in {pause:.0f} s"
        if self._child is None:
            level = logging.DEBUG if str(problem) == self._reported else logging.WARNING
            log.log(level, "tier '%s': %s", self.name, detail)
        else:
            lines = "".join(f"\n    {line}" for line in self._log.last_lines())
            log.error("tier '%s': %s; the end of its output, in %s:%s", self.name, detail, self._log.path, lines)
        self.status = msgspec.structs.replace(self.status, url="", context=None)
        self._reported = str(problem)
        self._set("down", str(problem))

    def _say(self, line: str) -> None:
        self._set("starting", line)

    def _set(self, state: EngineState, detail: str) -> None:
        self.status = msgspec.structs.replace(self.status, state=state, detail=detail)
        self._changed(self.status)


def _client(address: str, key: str) -> httpx.AsyncClient:
    # Never through a proxy: the address is this machine's.
    headers = {"authorization": f"Bearer {key}"} if key else {}
    return httpx.AsyncClient(
        base_url=address, headers=headers, timeout=httpx.Timeout(None, connect=5.0), trust_env=False
    )
