"""`python -m inference_core.grammar.check_server FD`: forks a process for each check of finished answers.

It needs no grammar library, so a gateway without models of its own checks the answers of servers elsewhere, too. FD is
the control socket: one byte for each check, with the socket over which a `Check` follows.
"""

import os
import signal
import socket
import sys
from contextlib import suppress
from typing import NoReturn

from inference_core.grammar.limits import allow, leave_group, set_limits
from inference_core.grammar.validation import AnswerValidator, UncheckedError
from inference_core.grammar.wire import Channel, Check, Checked


def serve(control: socket.socket) -> None:
    """Return when the other end of `control` is closed."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # no process waits for their ends
    while True:
        kind, files, _, _ = socket.recv_fds(control, 1, 1)
        if not kind:
            return
        for file in files:
            channel = Channel(socket.socket(fileno=file))
            with suppress(OSError):  # no process: the closed channel tells it
                if not os.fork():
                    control.close()
                    _check(channel)
            channel.close()


def _check(channel: Channel) -> NoReturn:
    with suppress(EOFError, OSError):
        given = channel.receive()
        assert isinstance(given, Check)
        set_limits(given.limits)
        allow(given.limits.check_seconds)
        channel.send(_checked(given))
    os._exit(0)


def _checked(given: Check) -> Checked:
    for place, (schema, text) in enumerate(given.pairs):
        try:
            error = AnswerValidator(schema).error(text)
        except UncheckedError as failure:
            error = str(failure)
        if error is not None:
            return Checked(error, place)
    return Checked(None)


if __name__ == "__main__":
    leave_group()
    serve(socket.socket(fileno=int(sys.argv[1])))
