"""Several gateway processes behind one port, and the core processes: started, watched, restarted whenever they end,
replaced and drained; their output is passed on line by line."""

import asyncio
import contextlib
import logging
import os
import shutil
import signal
import socket
import sys
import tempfile
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import AsyncExitStack
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, TextIO

import click
import msgspec

from gateway.base.configuration import catalog_reason, environment_of, own_command
from gateway.base.settings import Settings
from gateway.base.stores.retries import RestartPauses
from gateway.base.terminal import broken
from gateway.processes.announcement import (
    ServerStartError,
    ready_text,
    start_text,
    tell_service_manager,
    url_of,
)
from gateway.processes.start_checks import bound_sockets, warn_of_settings
from gateway.runtime.core_factory import socket_of
from gateway.runtime.engines.running_engines import RunningEngines, running_engines
from gateway.runtime.peers import YES, WorkerIdentity, ask_worker, socket_of_worker
from inference_core.model_spec import CoreSpec, DeviceGroupSpec
from tiers.catalog.catalog import CPU_CORE, Catalog
from tiers.catalog.core_spec import core_spec, group_spec
from tiers.catalog.load import load_catalog
from tiers.errors import CatalogError

log = logging.getLogger(__name__)

_LONGEST_LINE = 1 << 16


class ProcessEndedError(RuntimeError):
    """A process ended before it was ready; its earlier output says why."""


class KeptProcess:
    """Runs `aio ARGUMENTS`, restarted by `keep` until `stop`; while `must_not_end` is set, its end is an error.

    One that is `outdated` is not restarted: another has taken its place.

    Its standard input is a pipe that is never written to; when it closes, its supervisor is gone.
    """

    def __init__(
        self, name: str, arguments: Sequence[str], environment: Mapping[str, str], descriptors: Sequence[int] = ()
    ) -> None:
        self.name = name
        self.must_not_end = True
        self.outdated = False
        self._command = own_command(*arguments)
        self._environment = dict(environment)
        self._descriptors = tuple(descriptors)
        self._process: asyncio.subprocess.Process | None = None
        self._stopping = asyncio.Event()

    @property
    def pid(self) -> int | None:
        """The pid of the running process; None between two."""
        return None if self._process is None else self._process.pid

    async def keep(self) -> None:
        """Start the process, and restart it whenever it ends. Raises `ProcessEndedError` if it must not end."""
        pauses = RestartPauses()
        while not self._stopping.is_set():
            pauses.note_start()
            status = await self._run()
            if self._stopping.is_set() or self.outdated:
                return
            if self.must_not_end:
                raise ProcessEndedError(f"{self.name} ended with status {status} before it was ready; see above")
            delay = pauses.after_end()
            log.error("%s ended with status %s and is restarted in %g s", self.name, status, delay)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._stopping.wait(), delay)

    async def stop(self, seconds: float, number: signal.Signals = signal.SIGTERM) -> bool:
        """Stop it: signal `number`, and after `seconds` SIGKILL. Returns whether it ended by itself."""
        self._stopping.set()
        if (process := self._process) is None:
            return True
        self.send(number)
        try:
            async with asyncio.timeout(seconds):
                await process.wait()
        except TimeoutError:
            log.error("%s did not end within %g s and is killed", self.name, seconds)
            self.kill()
            await process.wait()
            return False
        return True

    def kill(self) -> None:
        self.send(signal.SIGKILL)

    def send(self, number: signal.Signals) -> None:
        """Send a signal to the process, if it runs."""
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                self._process.send_signal(number)

    async def _run(self) -> int:
        process = await asyncio.create_subprocess_exec(
            *self._command,
            env={**os.environ, **self._environment, "PYTHONUNBUFFERED": "1"},
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            pass_fds=self._descriptors,
            # A terminal's Ctrl-C must reach only the supervisor, which drains in order.
            start_new_session=True,
        )
        self._process = process
        assert process.stdout is not None
        assert process.stderr is not None
        log.info("%s is process %d", self.name, process.pid)
        try:
            await asyncio.gather(self._pass_on(process.stdout, sys.stdout), self._pass_on(process.stderr, sys.stderr))
            return await process.wait()
        finally:
            self._process = None

    async def _pass_on(self, output: asyncio.StreamReader, target: TextIO) -> None:
        """Pass on every line with the process's name in front."""
        rest = b""
        while piece := await output.read(_LONGEST_LINE):
            *lines, rest = (rest + piece).split(b"\n")
            if len(rest) > _LONGEST_LINE:
                lines, rest = [*lines, rest], b""
            self._write(lines, target)
        if rest:
            self._write([rest], target)

    def _write(self, lines: list[bytes], target: TextIO) -> None:
        for line in lines:
            # A line of JSON stays valid JSON.
            name = "" if line.startswith(b"{") else f"[{self.name}] "
            target.write(f"{name}{line.decode(errors='replace')}\n")
        target.flush()


POLL_SECONDS = 0.05
# Time beyond the drain itself: a core's own grace period, and closing a ledger.
_MARGIN_SECONDS = 15.0
_BACKLOG = 2048


_FOLDER_PREFIX = "aio-workers-"


def _folder_of_workers(count: int) -> Path:
    """Return a new folder for the sockets of so many gateways. Raises `SettingsError` if their paths are too long."""
    socket_of_worker(Path(tempfile.gettempdir(), f"{_FOLDER_PREFIX}{'_' * 8}"), count - 1)
    return Path(tempfile.mkdtemp(prefix=_FOLDER_PREFIX))


def run_supervised(settings: Settings) -> int:
    """Serve by `settings.gateway_workers` processes until a signal; return the exit status, 0 if all of them drained.

    Raises `ServerStartError`, `CatalogError` or `SettingsError` if they cannot start.
    """

    async def run() -> int:
        return await Supervisor(settings).run()

    return asyncio.run(run())


class Supervisor:
    """Keeps a process for every core of the catalogue (role `all`), its engines and the gateway processes running.

    Each gateway accepts from its own listening socket; the kernel spreads connections over them. The sockets belong to
    the supervisor and outlive the gateways: while a gateway restarts, its connections wait and none is refused. SIGTERM
    and SIGINT drain the gateways and then the cores; a second signal kills. SIGHUP is passed on to the gateways, which
    reload the catalogue. SIGUSR2 replaces one gateway after another by a new process, for a changed program or
    catalogue; the old one drains once the new one serves. Cores that the catalogue changes are replaced before, and the
    old ones stay until the gateways on them have drained (SPEC GW-15).
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._environment = environment_of(settings)
        self._folder = _folder_of_workers(settings.gateway_workers)
        self._listeners: list[list[socket.socket]] = []
        self._engines = RunningEngines({})
        self._cores: dict[str, KeptProcess] = {}
        self._core_specs: dict[str, CoreSpec | DeviceGroupSpec] = {}
        self._outdated_cores: list[KeptProcess] = []
        self._gateways: list[KeptProcess] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._over: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._renewal: asyncio.Task[None] | None = None
        self._renewal_asked = False
        self._was_impatient = False
        self._stopped_by = signal.SIGTERM

    async def run(self) -> int:
        """Run everything, from binding the port to the last drain."""
        loop = asyncio.get_running_loop()
        async with AsyncExitStack() as stack:
            stack.callback(shutil.rmtree, self._folder, ignore_errors=True)
            self._listeners = listeners_of(self._settings, self._settings.gateway_workers)
            for listener in chain.from_iterable(self._listeners):
                stack.enter_context(listener)
            why = catalog_reason(self._settings)
            catalog = load_catalog(self._settings.catalog)
            click.echo(broken(start_text(self._settings, why)))
            warn_of_settings(self._settings)
            if not self._settings.redis_url:
                log.warning(
                    "without AIO_REDIS_URL every worker counts rates and requests in flight by itself: a key may"
                    " come to %d times its limits; budgets hold",
                    len(self._listeners),
                )
            for number in (signal.SIGTERM, signal.SIGINT):
                loop.add_signal_handler(number, self._on_stop, number)
            loop.add_signal_handler(signal.SIGHUP, self._on_hangup)
            loop.add_signal_handler(signal.SIGUSR2, self._on_renew)
            if self._settings.chat_queue != "put":
                self._engines = await stack.enter_async_context(running_engines(catalog, self._settings.data_path))
            self._core_specs = self._specs_of(catalog)
            self._cores = {name: self._core(name) for name in self._core_specs}
            self._gateways = [self._gateway(number) for number in range(self._settings.gateway_workers)]
            for process in self._processes:
                self._in_background(process.keep())
            self._in_background(self._announce())
            try:
                await self._over
            except ProcessEndedError as error:
                raise ServerStartError(str(error)) from error
            finally:
                drained = await self._stop()
            return 0 if drained and not self._was_impatient else 1

    @property
    def _processes(self) -> list[KeptProcess]:
        return [*self._outdated_cores, *self._cores.values(), *self._gateways]

    def _specs_of(self, catalog: Catalog) -> dict[str, CoreSpec | DeviceGroupSpec]:
        """Return what each core that runs here computes, by its name."""
        names = catalog.core_names if self._settings.role == "all" else []
        return {name: core_spec(catalog) if name == CPU_CORE else group_spec(catalog, name) for name in names}

    def _core(self, name: str, *options: str) -> KeptProcess:
        arguments = ["serve", "--supervised", "--role", "core", "--group", name, *options]
        return KeptProcess(f"core {name}", arguments, self._environment)

    def _gateway(self, number: int) -> KeptProcess:
        descriptors = tuple(listener.fileno() for listener in self._listeners[number])
        count, folder = len(self._listeners), str(self._folder)
        worker = WorkerIdentity(number=number, count=count, folder=folder, listeners=descriptors)
        encoded = msgspec.json.encode(worker).decode()
        arguments = ["serve", "--supervised", "--role", "gateway", "--worker", encoded]
        return KeptProcess(f"gateway {number}", arguments, self._environment, descriptors)

    async def _announce(self) -> None:
        """Report readiness once every gateway serves and reached its cores; from then on ended processes restart."""
        for number, process in enumerate(self._gateways):
            await self._until_ready(number, process)
        for process in self._processes:
            process.must_not_end = False
        host, port = self._listeners[0][0].getsockname()[:2]
        asks = await ask_worker(self._folder, 0, "asks for keys")
        click.echo(ready_text(host, port, asks_for_keys=None if asks is None else asks == YES))
        tell_service_manager("READY=1", f"STATUS=Listening on {url_of(host, port)}")

    async def _until_ready(self, number: int, process: KeptProcess) -> None:
        """Polled: it happens in another process."""
        while True:
            reply = await ask_worker(self._folder, number, "ready")
            if reply is not None and reply.decode() == f"ready {process.pid}":
                return
            await asyncio.sleep(POLL_SECONDS)

    def _in_background(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run `work`; its failure fails the whole."""
        task: asyncio.Task[None] = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._on_end)
        return task

    def _on_end(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None and not self._over.done():
            self._over.set_exception(error)

    def _on_stop(self, number: signal.Signals) -> None:
        self._stopped_by = number
        if self._over.done():
            self._was_impatient = True
            for process in self._processes:
                process.kill()
            self._engines.kill()
        else:
            self._over.set_result(None)

    def _on_hangup(self) -> None:
        for process in self._gateways:
            process.send(signal.SIGHUP)

    def _on_renew(self) -> None:
        self._renewal_asked = True
        if self._renewal is None or self._renewal.done():
            self._renewal = self._in_background(self._renew())

    async def _renew(self) -> None:
        # A signal during a renewal may be for a later version than the processes that have been replaced.
        while self._renewal_asked:
            self._renewal_asked = False
            await self._renew_all()

    async def _renew_all(self) -> None:
        try:
            await self._renew_cores(load_catalog(self._settings.catalog))
            for number in range(len(self._gateways)):
                await self._renew_gateway(number)
        except (CatalogError, ProcessEndedError) as error:
            log.error("not replaced, the old one goes on: %s", error)
            return
        while self._outdated_cores:
            core = self._outdated_cores.pop()
            log.info("%s is not used any more and ends", core.name)
            await core.stop(_MARGIN_SECONDS)

    async def _renew_cores(self, catalog: Catalog) -> None:
        """Start the cores that `catalog` changes, next to the old ones. Raises `ProcessEndedError` for one that cannot
        start: there may be no memory for both."""
        specs = self._specs_of(catalog)
        for name in self._core_specs | specs:
            if self._core_specs.get(name) == specs.get(name):
                continue
            if name in specs:
                log.info("renewing core %s", name)
                new, address = self._core(name, "--replaces"), socket_of(self._settings, name)
                before = _inode(address)
                await self._started(new, partial(_until, lambda: _inode(address) not in (None, before)))  # noqa: B023
                self._outdate(name)
                self._cores[name], self._core_specs[name] = new, specs[name]
            else:
                self._outdate(name)
                del self._core_specs[name]

    def _outdate(self, name: str) -> None:
        if (old := self._cores.pop(name, None)) is not None:
            old.outdated = True
            self._outdated_cores.append(old)

    async def _renew_gateway(self, number: int) -> None:
        """Replace a gateway by a new process, once that serves. Raises `ProcessEndedError` if it cannot start."""
        old, new = self._gateways[number], self._gateway(number)
        log.info("renewing %s", old.name)
        await self._started(new, partial(self._until_ready, number, new))
        self._gateways[number] = new
        await old.stop(self._patience)

    async def _started(self, new: KeptProcess, until_ready: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Keep `new` from now on; return when it is ready. Raises `ProcessEndedError` if it ends before."""
        kept, ready = asyncio.create_task(new.keep()), asyncio.create_task(until_ready())
        await asyncio.wait((kept, ready), return_when=asyncio.FIRST_COMPLETED)
        ready.cancel()
        if kept.done():
            kept.result()
        self._tasks.add(kept)
        new.must_not_end = False

    @property
    def _patience(self) -> float:
        return self._settings.unready_seconds + 2 * self._settings.drain_seconds + _MARGIN_SECONDS

    async def _stop(self) -> bool:
        """Drain the gateways, which need the cores for it, then the cores. Returns whether none had to be killed."""
        tell_service_manager("STOPPING=1")
        for listener in chain.from_iterable(self._listeners):
            # Otherwise connections made after the workers closed theirs would wait forever.
            listener.close()
        gateways = await asyncio.gather(*(process.stop(self._patience, self._stopped_by) for process in self._gateways))
        cores = (*self._cores.values(), *self._outdated_cores)
        ended = await asyncio.gather(*(core.stop(_MARGIN_SECONDS) for core in cores))
        for task in self._tasks:
            task.cancel()
        return all((*gateways, *ended))


def _inode(path: Path) -> int | None:
    try:
        return path.stat().st_ino
    except FileNotFoundError:
        return None


async def _until(condition: Callable[[], bool]) -> None:
    """Polled: it is another process that makes it true."""
    while not condition():  # noqa: ASYNC110
        await asyncio.sleep(POLL_SECONDS)


def listeners_of(settings: Settings, count: int) -> list[list[socket.socket]]:
    """Return the listening sockets of `count` processes, of one port, over which the kernel spreads connections by
    their addresses.

    Measured, this is fairer than one socket for all, where the first process to wake up accepts a whole burst. Raises
    `ServerStartError` if the port is taken.
    """
    # Without reuse, so that a port used by another server is detected.
    probes = bound_sockets(settings.host, settings.port)
    port = probes[0].getsockname()[1]
    for probe in probes:
        probe.close()
    listeners = [bound_sockets(settings.host, port, reuse_port=True) for _ in range(count)]
    for listener in chain.from_iterable(listeners):
        listener.listen(_BACKLOG)
        listener.setblocking(False)
    return listeners
