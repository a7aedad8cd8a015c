"""What gets hostile inputs: fuzz targets are functions of bytes, classes of attacks send requests to a gateway."""

import importlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatch
from functools import cached_property
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from tests.attacks.targets import Target as Gateway

TESTS = Path(__file__).parents[1]
_FAMILIES = "attacks/families/*.py"
Mutation = Callable[[bytes, Random], bytes]
Seeds = Sequence[bytes] | Callable[[], Sequence[bytes]]

EXCUSED = {
    "too_many_connections": "the connections of other clients, a limit that tells clients to come back",
    "overloaded": "the requests of other clients, likewise",
    "database_unavailable": "a database that is down, as all of these only where a class stopped it",
    "budget_unavailable": "likewise",
    "limits_unavailable": "a Redis that is down, likewise",
    "no_core": "a gateway whose tiers are all remote has no core to ask, whatever the input",
}
"""Codes of documented 503 answers that no input causes by what it holds, with what does."""


@dataclass(frozen=True)
class FuzzTarget:
    """`run` returns a short label of how the input was taken; any exception is a finding.

    The documented errors of a parser are caught by `run` itself. `seeds`: inputs to start from, some of them valid,
    which a function makes where that takes long.
    `words`: pieces of the format, for mutations. `mutate`: mutations that keep the format's structure, used for half of
    the inputs. `seconds`: CPU time that one input may take; `megabytes`: growth of the process that one input may
    cause. `most_bytes`: length of the longest input; a parser of quadratic time is too slow for it. `inputs`: of a run
    without a limit of time; a tenth of them in a test.
    """

    name: str
    run: Callable[[bytes], str | None]
    given: Seeds
    words: tuple[bytes, ...] = ()
    mutate: Mutation | None = None
    seconds: float = 1.0
    megabytes: int = 64
    most_bytes: int = 1 << 16
    inputs: int = 1200

    @cached_property
    def seeds(self) -> tuple[bytes, ...]:
        return tuple(self.given() if callable(self.given) else self.given)

    @property
    def path(self) -> str:
        return f"fuzz/{self.name}"

    @property
    def process(self) -> str:
        """One of its own, which a native crash may end."""
        return self.path


class Outcome(NamedTuple):
    """`label`: how to recognise the input. `status`: of the answer, 0 where the connection was closed without one, -1
    where nothing came in time. `code`: of the error envelope. `bypass`: what the input gained that it must not, else
    empty. `expected`: an answer of 5xx is right, because a server behind the gateway failed."""

    label: str
    status: int
    code: str = ""
    bypass: str = ""
    expected: bool = False

    @property
    def is_server_error(self) -> bool:
        """Whether the input made the server fail."""
        return self.status >= 500 and self.code not in EXCUSED and not self.expected


Attack = Callable[["Gateway", Random, int], Iterator[Outcome]]


@dataclass(frozen=True)
class AttackClass:
    """`attack` sends `inputs` inputs in a whole run to the gateway called `on`, and yields their outcomes. One that is
    `privileged` has an admin key; after any other the administration must be unchanged."""

    name: str
    attack: Attack
    on: str
    inputs: int
    privileged: bool = False

    @property
    def path(self) -> str:
        return f"{self.process}/{self.name}"

    @property
    def process(self) -> str:
        """One for all classes of a gateway, which takes long to start."""
        return f"attacks/{self.on}"


Target = FuzzTarget | AttackClass


@dataclass(frozen=True)
class Limits:
    """Of each target: `inputs`, or `scale` times its own; at most `seconds`. The same `seed` draws the same inputs by
    mutation. `engine`: of fuzz targets; "auto" is by coverage where it can be and there is a limit of time alone."""

    scale: float = 1.0
    inputs: int | None = None
    seconds: float | None = None
    seed: int = 1
    engine: str = "auto"

    def count(self, target: Target) -> int:
        """Return the number of inputs of a target."""
        return self.inputs if self.inputs is not None else max(4, round(target.inputs * self.scale))

    @property
    def is_by_time(self) -> bool:
        """Whether the time alone ends a fuzz target."""
        return self.seconds is not None and self.inputs is None


TARGETS: dict[str, Target] = {}
"""By path, of the modules that are imported."""


def fuzz_target(
    seeds: Seeds, words: Sequence[bytes] = (), mutate: Mutation | None = None, **limits: Any
) -> Callable[[Callable[[bytes], str | None]], FuzzTarget]:
    """Register a function as the target `package.module.function`, as it stands below tests/fuzz."""

    def target(run: Callable[[bytes], str | None]) -> FuzzTarget:
        name = f"{run.__module__.removeprefix('tests.fuzz.')}.{run.__name__}"
        made = FuzzTarget(name, run, seeds, tuple(words), mutate, **limits)
        TARGETS[made.path] = made
        return made

    return target


def attack_class(name: str, inputs: int, *on: str, privileged: bool = False) -> Callable[[Attack], Attack]:
    """Register a class of attacks, for each of the gateways `on`; the others than the first are part of the name."""

    def register(attack: Attack) -> Attack:
        for place, gateway in enumerate(on):
            full = name if place == 0 else f"{name} ({gateway})"
            # A laptop's models take their time.
            share = 1 if place == 0 else 8 if gateway == "laptop" else 3
            made = AttackClass(full, attack, gateway, inputs // share, privileged)
            TARGETS[made.path] = made
        return attack

    return register


def target_at(path: str) -> Target:
    """Return one target; of a fuzz target only its own module is imported. Raises `KeyError`."""
    module = path.removeprefix("fuzz/").rpartition(".")[0].replace(".", "/")
    _load(f"fuzz/{module}.py" if path.startswith("fuzz/") else _FAMILIES)
    return TARGETS[path]


def targets_like(*patterns: str, without: Sequence[str] = ()) -> list[Target]:
    """Return the targets whose path has one of `patterns` in it, or matches it as file names do, and none of `without`;
    all without patterns."""

    def has(path: str, wanted: Sequence[str]) -> bool:
        return any(pattern in path or fnmatch(path, pattern) for pattern in wanted)

    # What no pattern can match takes seconds to import.
    for other, files in (("attacks/", "fuzz/*/*.py"), ("fuzz/", _FAMILIES)):
        if not patterns or not all(pattern.startswith(other) for pattern in patterns):
            _load(files)
    return [target for path, target in TARGETS.items() if has(path, patterns or ["*"]) and not has(path, without)]


def _load(files: str) -> None:
    for file in sorted(TESTS.glob(files)):
        importlib.import_module(".".join(file.relative_to(TESTS.parent).with_suffix("").parts))
