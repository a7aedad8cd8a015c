"""The optional parts of an installation: which packages each needs, and what to install where they are missing."""

from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from typing import Literal

from inference_core.errors import CoreError

Extra = Literal["local", "hub", "train", "postgres", "redis", "uvloop", "otlp", "oidc", "providers", "gpu", "ray"]

# The packages of pyproject.toml's extras by the names under which they are imported.
MODULES: dict[Extra, tuple[str, ...]] = {
    "local": ("torch", "transformers", "tokenizers", "llguidance"),
    "hub": ("huggingface_hub",),
    "train": ("sklearn", "scipy"),
    "postgres": ("asyncpg",),
    "redis": ("redis",),
    "uvloop": ("uvloop",),
    "otlp": ("opentelemetry",),
    "oidc": ("joserfc",),
    "providers": ("botocore", "google.auth"),
    "gpu": ("triton", "pynvml"),
    "ray": ("ray",),
}


class MissingExtraError(CoreError):
    """A package of an extra is not installed. Install the extra; the message says how."""

    def __init__(self, what: str, extra: Extra, missing: str) -> None:
        super().__init__(f"{what} needs {missing}, which this installation lacks: {install_command(extra)}")
        self.extra = extra


def install_command(extra: Extra) -> str:
    """The command that installs an extra."""
    return f"pip install 'aio-gateway[{extra}]'"


def missing_modules(extra: Extra) -> list[str]:
    """The modules of an extra that cannot be imported here; imports none of them."""
    return [name for name in MODULES[extra] if not is_installed(name)]


def require_extra(extra: Extra, what: str) -> None:
    """Raise MissingExtraError if a package of `extra` is missing; `what` needs it, and is the sentence's subject."""
    if missing := missing_modules(extra):
        raise MissingExtraError(what, extra, ", ".join(missing))


@contextmanager
def optional_imports(what: str) -> Iterator[None]:
    """For imports that need an extra's packages: without them MissingExtraError, whose subject is `what`."""
    try:
        yield
    except ModuleNotFoundError as error:
        extra = extra_of(error.name)
        if extra is None:
            raise
        raise MissingExtraError(what, extra, str(error.name)) from error


def extra_of(module: str | None) -> Extra | None:
    """The extra that a module which could not be imported belongs to; None if to none."""
    missing = f"{module}."
    # `google` alone is missing where nothing below it is installed.
    belongs = {
        name: missing.startswith(f"{name}.") or f"{name}.".startswith(missing)
        for names in MODULES.values()
        for name in names
    }
    return next((extra for extra, names in MODULES.items() if any(belongs[name] for name in names)), None)


def is_installed(name: str) -> bool:
    """Whether a module can be imported here; imports nothing."""
    try:
        return find_spec(name) is not None
    except ModuleNotFoundError:  # nor is the package that it would be in
        return False
    except ValueError:  # imported, but without a spec: something stands in for it
        return True
