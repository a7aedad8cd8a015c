"""A fuzz target: a function of bytes that fails unless a parser does what it documents, and how to start on it."""

import importlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatch
from functools import cached_property
from pathlib import Path
from random import Random

HERE = Path(__file__).parent
Mutation = Callable[[bytes, Random], bytes]
Seeds = Sequence[bytes] | Callable[[], Sequence[bytes]]


@dataclass(frozen=True)
class Target:
    """`run` returns a short label of how the input was taken; any exception is a finding.

    The documented errors of a parser are caught by `run` itself. `seeds`: inputs to start from, some of them valid,
    which a function makes where that takes long.
    `words`: pieces of the format, for mutations. `mutate`: mutations that keep the format's structure, used for half of
    the inputs. `seconds`: CPU time that one input may take; `megabytes`: growth of the process that one input may
    cause. `most_bytes`: length of the longest input; a parser of quadratic time is too slow for it.
    """

    name: str
    run: Callable[[bytes], str | None]
    given: Seeds
    words: tuple[bytes, ...]
    mutate: Mutation | None
    seconds: float
    megabytes: int
    most_bytes: int

    @cached_property
    def seeds(self) -> tuple[bytes, ...]:
        return tuple(self.given() if callable(self.given) else self.given)


def fuzz_target(
    seeds: Seeds,
    words: Sequence[bytes] = (),
    mutate: Mutation | None = None,
    *,
    seconds: float = 1.0,
    megabytes: int = 64,
    most_bytes: int = 1 << 16,
) -> Callable[[Callable[[bytes], str | None]], Target]:
    """Make a function the target `package.module.function`, as it stands below this folder."""

    def target(run: Callable[[bytes], str | None]) -> Target:
        name = f"{run.__module__.removeprefix('tests.fuzz.')}.{run.__name__}"
        return Target(name, run, seeds, tuple(words), mutate, seconds, megabytes, most_bytes)

    return target


def target_called(name: str) -> Target:
    """Return one target; only its own module is imported. Raises `KeyError`."""
    module, _, function = name.rpartition(".")
    if not (HERE / f"{module.replace('.', '/')}.py").is_file():
        raise KeyError(f"no fuzz target is called {name!r}")
    found = getattr(importlib.import_module(f"tests.fuzz.{module}"), function, None)
    if not isinstance(found, Target):
        raise KeyError(f"no fuzz target is called {name!r}")
    return found


def targets_like(pattern: str = "*") -> list[Target]:
    """Return the targets whose name has `pattern` in it, or matches it as file names do; in order of their names."""
    found: dict[str, Target] = {}
    for path in sorted(HERE.glob("*/*.py")):
        module = importlib.import_module(f"tests.fuzz.{path.parent.name}.{path.stem}")
        found |= {value.name: value for value in vars(module).values() if isinstance(value, Target)}
    return [found[name] for name in sorted(found) if pattern in name or fnmatch(name, pattern)]
