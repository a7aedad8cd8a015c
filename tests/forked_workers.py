"""A pytest plugin: `--forks N` runs the tests in N forks of the process that collected them.

pytest-xdist's workers each import all files of tests and what these import, for more than twenty seconds of processor
time; a fork has everything, and shares the memory. As with `--dist loadfile`, the tests of a file run in one process,
and files with many tests come first. A process that dies costs the test that it ran.
"""

import multiprocessing
import os
import pickle
import signal
import sys
import traceback
from collections import deque
from collections.abc import Iterator
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any
from warnings import WarningMessage

import pytest
from _pytest.config import create_terminal_writer
from _pytest.junitxml import xml_key
from _pytest.runner import CallInfo

# What reports to the user or on disk; forks report to the first process.
REPORTERS = ("terminalreporter", "lfplugin", "nfplugin", "stepwiseplugin")
TEARDOWN_SECONDS = 30.0
# A terminal and `timeout` send them to all processes of a run; so does its first process.
ENDING = (signal.SIGINT, signal.SIGTERM)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--forks", type=int, default=0, help="Run the tests in this many forks; 0: in this process.")


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop(session: pytest.Session) -> bool | None:
    options = session.config.option
    if not options.forks or options.collectonly or session.testsfailed:
        return None
    # Made here, so that forks have theirs inside.
    session.config._tmp_path_factory.getbasetemp()  # type: ignore[attr-defined]
    # A run that is terminated tears down its servers and folders, too.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    forks = _Forks(session)
    try:
        forks.run()
    finally:
        forks.interrupt()
        forks.end()
    return True


class _Fork:
    """A process that runs tests. `tests`: the places in `session.items` of those that it has got and not ended."""

    def __init__(self, session: pytest.Session, name: str, others: list["_Fork"]) -> None:
        context = multiprocessing.get_context("fork")
        self.connection, theirs = context.Pipe()
        self.tests: deque[int] = deque()
        inherited = [self.connection, *(fork.connection for fork in others)]
        self.process: BaseProcess = context.Process(target=_serve, args=(session, name, theirs, inherited))
        self.process.start()
        theirs.close()


class _Forks:
    """Gives files of tests to forks, and what these report to the hooks of this process."""

    def __init__(self, session: pytest.Session) -> None:
        self._session, self._forks, self._started = session, list[_Fork](), 0
        files: dict[Path, list[int]] = {}
        for place, item in enumerate(session.items):
            files.setdefault(item.path, []).append(place)
        self._files = deque(sorted(files.values(), key=len, reverse=True))

    def run(self) -> None:
        for _ in range(min(self._session.config.option.forks, len(self._files))):
            self._start()
        while self._forks:
            ready = wait([fork.connection for fork in self._forks])
            for fork in [fork for fork in self._forks if fork.connection in ready]:
                try:
                    self._take(fork, *fork.connection.recv())
                except EOFError:
                    self._ended(fork)
                if self._session.shouldfail:
                    raise self._session.Failed(self._session.shouldfail)
                if self._session.shouldstop:
                    raise self._session.Interrupted(self._session.shouldstop)

    def interrupt(self) -> None:
        """Let each fork leave its test, and tear down what it has."""
        for fork in self._forks:
            if (process := fork.process.pid) is not None and fork.process.is_alive():
                os.kill(process, signal.SIGINT)

    def end(self) -> None:
        for fork in self._forks:
            fork.process.join(TEARDOWN_SECONDS)
            fork.process.kill()
            fork.process.join()
        self._forks.clear()

    def _start(self) -> None:
        self._forks.append(_Fork(self._session, f"gw{self._started}", self._forks))
        self._started += 1

    def _take(self, fork: _Fork, kind: str, *said: Any) -> None:
        hook, config = self._session.config.hook, self._session.config
        match kind:
            case "next":
                tests = self._files.popleft() if self._files else []
                fork.tests.extend(tests)
                fork.connection.send(tests)
            case "start":
                hook.pytest_runtest_logstart(nodeid=said[0], location=said[1])
            case "report":
                hook.pytest_runtest_logreport(report=hook.pytest_report_from_serializable(config=config, data=said[0]))
            case "finish":
                fork.tests.popleft()
                hook.pytest_runtest_logfinish(nodeid=said[0], location=said[1])
            case "warning":
                hook.pytest_warning_recorded.call_historic(kwargs=said[0])
            case "error":
                raise RuntimeError(f"a fork failed outside of tests:\n{said[0]}")

    def _ended(self, fork: _Fork) -> None:
        """Where the fork had tests left, the one that it ran has failed, and another goes on with the others."""
        self._forks.remove(fork)
        fork.process.join()
        if not fork.tests:
            if fork.process.exitcode:
                raise RuntimeError(f"a fork that ran no test ended with {fork.process.exitcode}")
            return
        item = self._session.items[fork.tests.popleft()]
        reason = f"the process that ran it ended with {fork.process.exitcode}"
        call = CallInfo.from_call(lambda: pytest.fail(reason, pytrace=False), when="call")
        self._session.config.hook.pytest_runtest_logreport(report=pytest.TestReport.from_item_and_call(item, call))
        if fork.tests:
            self._files.appendleft(list(fork.tests))
        if self._files:
            self._start()


def _serve(session: pytest.Session, name: str, channel: Connection, inherited: list[Connection]) -> None:
    """Run the tests that `channel` brings, in a fork, until there are none."""
    for connection in inherited:
        connection.close()
    # Ignored in what a shell runs in the background.
    for number in ENDING:
        signal.signal(number, signal.default_int_handler)
    os.environ["PYTEST_XDIST_WORKER"] = name
    config = session.config
    _use_own_files(config, name)
    for plugin in (*map(config.pluginmanager.get_plugin, REPORTERS), config.stash.get(xml_key, None)):
        if plugin is not None:
            config.pluginmanager.unregister(plugin)
    config.pluginmanager.register(_Writer(config), "terminalreporter")
    config.pluginmanager.register(_Relay(config, channel))
    try:
        _run(session, _places(channel))
    except KeyboardInterrupt:
        pass
    except BaseException:
        channel.send(("error", traceback.format_exc()))
    finally:
        for number in ENDING:  # the second time
            signal.signal(number, lambda *_: None)
        # Servers of fixtures end, whatever happened.
        session._setupstate.teardown_exact(None)


def _run(session: pytest.Session, places: Iterator[int]) -> None:
    place = next(places, None)
    while place is not None:
        # The last test of a file tears down what only the file has: for this the next one has to be known.
        following = next(places, None)
        nextitem = None if following is None else session.items[following]
        session.config.hook.pytest_runtest_protocol(item=session.items[place], nextitem=nextitem)
        place = following


def _places(channel: Connection) -> Iterator[int]:
    while True:
        channel.send(("next",))
        if not (places := channel.recv()):
            return
        yield from places


def _use_own_files(config: pytest.Config, name: str) -> None:
    """Capture output in files of this process, and keep temporary ones in a folder of its own."""
    capture = config.pluginmanager.get_plugin("capturemanager")
    capture.stop_global_capturing()
    capture.start_global_capturing()
    folder = config._tmp_path_factory.getbasetemp() / name  # type: ignore[attr-defined]
    folder.mkdir()
    config._tmp_path_factory._basetemp = folder  # type: ignore[attr-defined]


class _Writer:
    """In place of the terminal's reporter, for what writes to it, such as the stacks of a test that takes too long."""

    def __init__(self, config: pytest.Config) -> None:
        self._tw = create_terminal_writer(config, sys.stderr)


class _Relay:
    """Sends what happens in a fork to the first process."""

    def __init__(self, config: pytest.Config, channel: Connection) -> None:
        self._config, self._channel = config, channel

    def pytest_runtest_logstart(self, nodeid: str, location: tuple[str, int | None, str]) -> None:
        self._channel.send(("start", nodeid, location))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        data = self._config.hook.pytest_report_to_serializable(config=self._config, report=report)
        self._channel.send(("report", data))

    def pytest_runtest_logfinish(self, nodeid: str, location: tuple[str, int | None, str]) -> None:
        self._channel.send(("finish", nodeid, location))

    def pytest_warning_recorded(self, warning_message: WarningMessage, when: str, nodeid: str, location: Any) -> None:
        try:
            pickle.dumps(warning_message.message)
        except Exception:  # an exception may hold anything
            warning_message.message = UserWarning(str(warning_message.message))
        # A file or a source that it belongs to is not sent.
        plain = WarningMessage(
            warning_message.message, warning_message.category, warning_message.filename, warning_message.lineno
        )
        known = {"warning_message": plain, "when": when, "nodeid": nodeid, "location": location}
        self._channel.send(("warning", known))
