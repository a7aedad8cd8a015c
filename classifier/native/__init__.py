"""The kernels of a routing decision as an optional extension; without it numpy does the same work.

`KERNELS` is the module, or None; `AIO_NATIVE=off` in the environment selects numpy. Both give the same numbers up to
rounding, which a test checks. An extension built from other sources is not used.
"""

import os
from typing import Any

KERNELS: Any
try:
    from classifier.native import _decision as KERNELS  # type: ignore[attr-defined, no-redef, unused-ignore]
except ImportError:
    KERNELS = None

_VERSION = 8

if os.environ.get("AIO_NATIVE") == "off" or getattr(KERNELS, "VERSION", None) != _VERSION:
    KERNELS = None
