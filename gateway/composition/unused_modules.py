"""Parts of libraries that only their own consoles need, and that a server would otherwise import and keep in memory."""

import sys

# httpx's command line, which imports rich and Pygments, and Mako's coloured tracebacks, which import Pygments: both
# libraries go on without. Together seven megabytes and a twentieth of a second of a start.
_CONSOLE_ONLY = ("httpx._main", "mako.ext.pygmentplugin")


def leave_out_console_modules() -> None:
    """Make importing these modules fail, as if what they need were not installed; call it before their libraries are
    imported."""
    for name in _CONSOLE_ONLY:
        sys.modules.setdefault(name, None)  # type: ignore[arg-type]
