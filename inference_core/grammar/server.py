"""`python -m inference_core.grammar.server FD`: holds the vocabularies and forks a process for each grammar.

It runs no grammar itself, so it is always ready to fork the next process. A fork takes milliseconds and shares the
vocabularies, which take a second and tens of megabytes to load. Forking is safe here, unlike in the serving process,
because this one has a single thread and loads only the grammar library. FD is the control socket (see `wire`). When its
other end is closed, this process and all that it started end.
"""

import gc
import os
import select
import signal
import socket
import sys
import traceback
from contextlib import suppress
from typing import NoReturn

from llguidance import LLTokenizer

from inference_core.grammar.process_limits import leave_group
from inference_core.grammar.trie import trie_of
from inference_core.grammar.wire import VOCABULARY, Channel, Ended, Failed, Loaded, Vocabulary
from inference_core.grammar.worker import RemoteEncoder, run


class Server:
    """Serves one control socket."""

    def __init__(self, control: socket.socket) -> None:
        self._control = control
        self._vocabularies: dict[int, LLTokenizer] = {}
        self._encode = RemoteEncoder()
        self._workers: dict[int, Channel] = {}  # by process id
        self._by_file: dict[int, int] = {}  # process ids by file descriptor
        self._poll = select.poll()
        # Without a handler the signal would not wake `poll`.
        signal.signal(signal.SIGCHLD, lambda number, frame: None)
        self._woken, waker = socket.socketpair()
        for end in (self._woken, waker):
            end.setblocking(False)
        self._waker = waker
        signal.set_wakeup_fd(waker.fileno(), warn_on_full_buffer=False)

    def serve(self) -> None:
        """Return when the other end of the control socket is closed."""
        self._poll.register(self._control, select.POLLIN)
        self._poll.register(self._woken, select.POLLIN)
        while True:
            for file, _ in self._poll.poll():
                if file == self._woken.fileno():
                    self._woken.recv(4096)
                    self._reap()
                elif file != self._control.fileno():
                    self._end(file)
                elif not self._execute():
                    return

    def _execute(self) -> bool:
        """Execute one command of the control socket. Returns whether it is still open."""
        with suppress(ConnectionError):
            kind, files, _, _ = socket.recv_fds(self._control, 1, 1)
            if not kind:
                return False
            if files:
                channel = Channel(socket.socket(fileno=files[0]))
                if kind == VOCABULARY:
                    self._load(channel)
                else:
                    self._start(channel)
            return True
        return False

    def _load(self, channel: Channel) -> None:
        with suppress(EOFError, OSError):
            given = channel.receive()
            assert isinstance(given, Vocabulary)
            try:
                self._vocabularies[given.number] = trie_of(given.tokens, given.eos_token_ids, self._encode)
            except Exception as error:
                channel.send(Failed(repr(error)))
            else:
                channel.send(Loaded())
        channel.close()
        # Freeze the vocabularies: garbage collection in forked processes would copy their pages.
        gc.collect()
        gc.freeze()

    def _start(self, channel: Channel) -> None:
        try:
            process = os.fork()
        except OSError:
            channel.send_at_once(Ended(0))
            channel.close()
            return
        if not process:
            self._become_worker(channel)
        self._workers[process] = channel
        self._by_file[channel.fileno()] = process
        self._poll.register(channel.fileno(), 0)  # POLLHUP: the serving process has closed it

    def _become_worker(self, channel: Channel) -> NoReturn:
        try:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            for own in (self._control, self._woken, self._waker):
                own.close()
            for other in self._workers.values():
                other.close()
            # The library prints its panics, which any caller can cause.
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, 2)
            self._encode.channel = channel
            run(channel, self._vocabularies)
        except Exception as error:
            channel.send_at_once(Failed(type(error).__name__))
        finally:
            os._exit(1)

    def _end(self, file: int) -> None:
        process = self._by_file.get(file)
        if process is not None:  # None: it has ended meanwhile
            self._poll.unregister(file)
            os.kill(process, signal.SIGKILL)

    def _reap(self) -> None:
        while self._workers:
            process, status = os.waitpid(-1, os.WNOHANG)
            if not process:
                return
            channel = self._workers.pop(process)
            file = channel.fileno()
            del self._by_file[file]
            with suppress(KeyError):  # removed when it was ended
                self._poll.unregister(file)
            channel.send_at_once(Ended(os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0))
            channel.close()


def main() -> NoReturn:
    leave_group()
    try:
        Server(socket.socket(fileno=int(sys.argv[1]))).serve()
    except BaseException:
        traceback.print_exc()
    while True:
        os.killpg(0, signal.SIGKILL)


if __name__ == "__main__":
    main()
