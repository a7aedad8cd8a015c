"""`python -m tests.inference_core.transport.child_program FD LOAD`: a core for the process that started this one.

LOAD: `serve` has a scripted core, `no-memory` and `bug` have none, `endless` loads for ever, `deaf` never ends by
itself.
"""

import sys
import threading

from inference_core.errors import CoreGoneError, MemoryPlanError
from inference_core.transport.core_thread import SteppingCore
from inference_core.transport.listener import InheritedListener
from inference_core.transport.server import serve_core
from tests.inference_core.transport.scripted_core import ScriptedCore


def load(kind: str) -> SteppingCore:
    if kind == "no-memory":
        raise MemoryPlanError("12 GB are needed, 8 GB are free")
    if kind == "bug":
        raise ZeroDivisionError("a bug")
    if kind == "endless":
        threading.Event().wait()
    return ScriptedCore()


def main(descriptor: int, kind: str) -> None:
    try:
        serve_core(lambda: load(kind), InheritedListener(descriptor))
    except CoreGoneError:
        sys.exit(1)
    if kind == "deaf":
        threading.Event().wait()


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])
