"""Parts of libraries that a server does not need, and would otherwise import and keep in memory."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager

# httpx's command line, which imports rich and Pygments, and Mako's coloured tracebacks, which import Pygments: both
# libraries go on without. Together seven megabytes and a twentieth of a second of a start.
_CONSOLE_ONLY = ("httpx._main", "mako.ext.pygmentplugin")


def leave_out_console_modules() -> None:
    """Make importing these modules fail, as if what they need were not installed; call it before their libraries are
    imported."""
    for name in _CONSOLE_ONLY:
        sys.modules.setdefault(name, None)  # type: ignore[arg-type]


@contextmanager
def without_pydantic() -> Iterator[None]:
    """Make litestar's plugin for pydantic find none, unless it is loaded already: no body here is a pydantic model, and
    the package is only there for the price list. Ten megabytes, and a tenth of a second of a start."""
    sys.modules.setdefault("pydantic", None)  # type: ignore[arg-type]
    try:
        yield
    finally:
        if not sys.modules["pydantic"]:
            del sys.modules["pydantic"]
