"""Starts a server process that hands its work to others, and hands it channels over its control socket."""

import os
import socket
import subprocess
from collections.abc import Sequence

from inference_core.grammar.wire import Channel


def launched(program: Sequence[str]) -> tuple[socket.socket, subprocess.Popen[bytes]]:
    """Start `program` with the file of its control socket as last argument. Returns our end, and the process.

    Raises OSError, `subprocess.SubprocessError`. The process has a group of its own: Ctrl-C interrupts only the serving
    process, and all that the server started can be ended at once. It shares the session of the serving process: Linux
    compares priorities within a session only (sched(7), "The autogroup feature").
    """
    control, theirs = socket.socketpair()
    with theirs:
        file = theirs.fileno()
        process = subprocess.Popen(  # noqa: S603 - our own program
            [*program, str(file)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            pass_fds=(file,),
            process_group=0,
            # An arena of malloc for each thread would take most of a grammar's address space.
            env=os.environ | {"MALLOC_ARENA_MAX": "1"},
        )
    return control, process


def handed_over(control: socket.socket, kind: bytes) -> Channel:
    """Create a channel and send its other end to the server, with what it is for. Raises OSError."""
    ours, theirs = socket.socketpair()
    with theirs:
        socket.send_fds(control, [kind], [theirs.fileno()])
    return Channel(ours)
