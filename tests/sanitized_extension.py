"""A pytest plugin (`-p tests.sanitized_extension`): uses the extensions under `AIO_EXTENSION` instead of the installed
ones.

`make sanitize` builds them with -fsanitize=address,undefined.
"""

import importlib.util
import os
import sys
from pathlib import Path

_NAMES = ("inference_core.native._cpu", "classifier.native._decision")


def _install(folder: Path, name: str) -> None:
    (file,) = folder.rglob(f"{name.rpartition('.')[2]}.*.so")
    spec = importlib.util.spec_from_file_location(name, file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    sys.modules[name] = module


for _name in _NAMES:
    _install(Path(os.environ["AIO_EXTENSION"]), _name)
