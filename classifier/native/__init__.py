"""The kernels of a routing decision as an optional extension: where it was not built, numpy does the same work.

`KERNELS` is the module, or None; `AIO_NATIVE=off` in the environment leaves the work to numpy. Both give the same
numbers up to rounding, and a test holds them to it. An extension that was built from other sources is left alone.
"""

import os
from typing import Any

KERNELS: Any
try:
    from classifier.native import _decision as KERNELS  # type: ignore[attr-defined, no-redef, unused-ignore]
except ImportError:
    KERNELS = None

_VERSION = 3

if os.environ.get("AIO_NATIVE") == "off" or getattr(KERNELS, "VERSION", None) != _VERSION:
    KERNELS = None
