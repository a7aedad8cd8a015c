"""Parts of libraries that a server does not need, and would otherwise import and keep in memory."""

import sys
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from types import ModuleType

# httpx's command line, which imports rich and Pygments, and Mako's coloured tracebacks, which import Pygments: both
# libraries go on without. Together seven megabytes and a twentieth of a second of a start.
_CONSOLE_ONLY = ("httpx._main", "mako.ext.pygmentplugin")

# SQLAlchemy's sessions, which import its object-relational mapper; its package for asyncio imports them by name. Every
# query here is of tables. Six megabytes, and a twentieth of a second of a start.
_SESSIONS = ("sqlalchemy.ext.asyncio.scoping", "sqlalchemy.ext.asyncio.session")

# Packages that litestar has plugins for. No body here is an attrs class or a pydantic model; pydantic is only there for
# the price list. Ten megabytes, and a tenth of a second of a start.
_WITH_PLUGINS = ("pydantic", "attr")


class _Unused(ModuleType):
    """Stands for a module whose names are imported and never used."""

    def __getattr__(self, name: str) -> None:
        if name.startswith("__"):
            raise AttributeError(name)


def leave_out_unused_modules() -> None:
    """Make importing what only consoles need fail, as if what it needs were not installed, and sessions of the database
    be nothing; call it before their libraries are imported."""
    for name in _CONSOLE_ONLY:
        sys.modules.setdefault(name, None)  # type: ignore[arg-type]
    for name in _SESSIONS:
        sys.modules.setdefault(name, _Unused(name))


def import_litestar() -> None:
    """Import litestar without PyYAML, which it imports to render a schema that is served as JSON only."""
    with _instead({"yaml": _Unused("yaml")}):
        import litestar.openapi.plugins  # noqa: F401


def without_plugins() -> AbstractContextManager[None]:
    """Make litestar's plugins for other packages' classes find none of those that are not loaded already."""
    return _instead(dict.fromkeys(_WITH_PLUGINS))


@contextmanager
def _instead(stand_ins: Mapping[str, ModuleType | None]) -> Iterator[None]:
    """Let imports find `stand_ins` in place of modules that are not loaded already; None: as if not installed."""
    absent = {name: module for name, module in stand_ins.items() if name not in sys.modules}
    sys.modules.update(absent)  # type: ignore[arg-type]
    try:
        yield
    finally:
        for name in absent:
            del sys.modules[name]
