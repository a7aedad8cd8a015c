"""Keeps one engine running: found, given its model, started, watched, and restarted when it dies or hangs."""

import asyncio
import logging
import os
import random
import secrets
import shutil
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import msgspec

from gateway.runtime.engines.engine_child import EngineChild
from gateway.runtime.engines.engine_log import EngineLog
from gateway.runtime.engines.held_port import HeldPort
from gateway.runtime.engines.model_pull import pull_model
from gateway.runtime.engines.ollama_model import load_ollama_model
from gateway.runtime.engines.problem import EngineProblem
from inference_core.errors import ModelFileError
from inference_core.io.json_errors import JSON_ERRORS
from inference_core.loaders.hub_model import parse_hub_model
from inference_core.loaders.model_path import resolve_model_path
from tiers.engines.engine_spec import EngineSpec
from tiers.engines.engine_status import EngineState, EngineStatus
from tiers.engines.programs import HOST, PROGRAMS, EngineProgram, child_environment, command_line, served_name
from tiers.remote.http_exchange import bounded_answer
from tiers.server_words import context_of

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
        found = shutil.which(self._program.name, path=self._environ.get("PATH"))
        if found is None:
            raise EngineProblem(
                f"the program {self._program.name} is not installed or not on PATH; install it: {self._program.install}"
            )
        model = await self._model()
        began, number = time.monotonic(), port.number
        key = secrets.token_hex(16) if self._program.takes_key else ""
        command = command_line(self.spec, found, model, served_name(self.spec.model, self._program), number, key)
        environment = child_environment(self.spec, self._environ, self._secret, number, key)
        self.status = msgspec.structs.replace(self.status, start=self.status.start + 1, key=key)
        self._set("starting", f"{self._program.name} is starting")
        self._log.forget_lines()
        self._log.write(f"--- start {self.status.start}: {' '.join(arg for arg in command if arg != key)}\n".encode())
        log.info("tier '%s': starting %s on port %d, its output is in %s", self.name, found, number, self._log.path)
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
        """Publish progress."""
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
