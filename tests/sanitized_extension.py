"""A pytest plugin (`-p tests.sanitized_extension`): uses the extension under `AIO_EXTENSION` instead of the installed
one.

`make sanitize` builds it with -fsanitize=address,undefined.
"""

import importlib.util
import os
import sys
from pathlib import Path

_NAME = "inference_core.native._cpu"


def _install(folder: Path) -> None:
    (file,) = folder.rglob("_cpu*.so")
    spec = importlib.util.spec_from_file_location(_NAME, file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    sys.modules[_NAME] = module


_install(Path(os.environ["AIO_EXTENSION"]))
