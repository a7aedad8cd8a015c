"""A process as `pip install aio-gateway` makes it, without any extra: imports of the extras' packages fail."""

from collections.abc import Sequence
from pathlib import Path

from inference_core.extras import MODULES
from tests.support.served import run_at_start

OPTIONAL = [name for names in MODULES.values() for name in names]


def without_extras(folder: Path, missing: Sequence[str] = OPTIONAL) -> dict[str, str]:
    """The environment of such a process; `folder`: see `run_at_start`."""
    return run_at_start(folder, f"import sys\nsys.modules.update(dict.fromkeys({list(missing)!r}))\n")
