"""The kernels of a routing decision as an optional extension; without it numpy does the same work.

`KERNELS` is the module, or None; `AIO_NATIVE=off` in the environment selects numpy. Both give the same numbers up to
rounding, which a test checks. An extension built from other sources is not used. `MISSING` says why there are no
kernels that were wanted, "" where there are.
"""

import os
from typing import Any

KERNELS: Any
try:
    from classifier.native import _decision as KERNELS  # type: ignore[attr-defined, no-redef, unused-ignore]
except ImportError:
    KERNELS = None

_VERSION = 11

MISSING = ""
if os.environ.get("AIO_NATIVE") == "off":
    KERNELS = None
elif getattr(KERNELS, "VERSION", None) != _VERSION:
    problem = "no native kernels for decisions" if KERNELS is None else "native kernels for decisions of other sources"
    MISSING = f"{problem}, using slower numpy: install a C++ compiler and reinstall"
    KERNELS = None
