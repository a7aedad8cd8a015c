"""A process as `pip install aio-gateway` makes it, without any extra: imports of the extras' packages fail."""

import os
from collections.abc import Sequence
from pathlib import Path

from inference_core.extras import MODULES

OPTIONAL = [name for names in MODULES.values() for name in names]


def without_extras(folder: Path, missing: Sequence[str] = OPTIONAL) -> dict[str, str]:
    """The environment of such a process; `folder` receives a file that Python runs as it starts."""
    folder.mkdir(parents=True, exist_ok=True)
    refused = f"import sys\nsys.modules.update(dict.fromkeys({list(missing)!r}))\n"
    (folder / "sitecustomize.py").write_text(refused)
    return {"PYTHONPATH": os.pathsep.join([str(folder), *filter(None, [os.environ.get("PYTHONPATH")])])}
