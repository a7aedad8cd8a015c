"""Which lines of some files ran."""

import sys
import threading
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

Lines = dict[str, set[int]]


@contextmanager
def lines_reached(files: Collection[str]) -> Iterator[Lines]:
    """Yield a dict that gets the lines of each of `files` (absolute paths) that run in the block, in any thread."""
    lines: Lines = {file: set() for file in files}

    def called(frame: FrameType, event: str, _: Any) -> Any:
        found = lines.get(frame.f_code.co_filename)
        if found is None:
            return None
        add = found.add

        def ran(frame: FrameType, event: str, _: Any) -> Any:
            add(frame.f_lineno)
            return ran

        return ran

    threading.settrace(called)
    sys.settrace(called)
    try:
        yield lines
    finally:
        sys.settrace(None)
        threading.settrace(None)  # type: ignore[arg-type]
