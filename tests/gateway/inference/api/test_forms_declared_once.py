"""A field of a dialect is declared once: no struct has only fields that another one has, too."""

from collections.abc import Iterator
from importlib import import_module
from pkgutil import walk_packages
from types import ModuleType

import msgspec
import pytest

import gateway.inference.api
import tiers.dialects

LEAST_FIELDS = 3
"""Fewer are in common by chance: `type` and `text`, `id` and `name`."""
# Modules by the dialect whose form they have; the beginnings of their names.
MODULES = {
    "chat": (
        "tiers.dialects.chat",
        "gateway.inference.api.answers",
        "gateway.inference.api.chat",
        "gateway.inference.api.chunks",
        "gateway.inference.api.completions",
    ),
    "messages": ("tiers.dialects.messages", "gateway.inference.api.messages"),
    "responses": ("tiers.dialects.responses", "gateway.inference.api.responses"),
    "gemini": ("tiers.dialects.gemini", "gateway.inference.api.gemini"),
    "bedrock": ("tiers.dialects.bedrock",),
    "triton": ("tiers.dialects.triton",),
}


def modules_of(package: ModuleType) -> Iterator[ModuleType]:
    for module in walk_packages(package.__path__, f"{package.__name__}."):
        yield import_module(module.name)


def structs_of(modules: list[ModuleType], beginnings: tuple[str, ...]) -> list[type[msgspec.Struct]]:
    """The structs that modules of these names declare."""
    declared = [
        value for module in modules if module.__name__.startswith(beginnings) for value in vars(module).values()
    ]
    structs = [value for value in declared if isinstance(value, type) and issubclass(value, msgspec.Struct)]
    return list(dict.fromkeys(one for one in structs if one.__module__.startswith(beginnings)))


def own_fields(struct: type[msgspec.Struct], beside: type[msgspec.Struct]) -> frozenset[str]:
    """The fields of a struct, by their names in JSON, without those of a struct on which both are built."""
    shared = [base for base in struct.__mro__ if base in beside.__mro__ and issubclass(base, msgspec.Struct)]
    inherited = [name for base in shared for name in base.__struct_encode_fields__]
    return frozenset(struct.__struct_encode_fields__).difference(inherited)


def is_within(struct: type[msgspec.Struct], other: type[msgspec.Struct]) -> bool:
    """Whether another struct, which is not built on this one, has all of its fields."""
    if issubclass(struct, other) or issubclass(other, struct):
        return False
    fields, others = own_fields(struct, other), own_fields(other, struct)
    is_first = fields < others or (fields == others and struct.__name__ < other.__name__)
    return len(fields) >= LEAST_FIELDS and is_first


def declared_twice(structs: list[type[msgspec.Struct]]) -> set[tuple[str, str]]:
    return {(one.__name__, other.__name__) for one in structs for other in structs if is_within(one, other)}


@pytest.fixture(scope="module")
def found() -> set[tuple[str, str]]:
    modules = [*modules_of(tiers.dialects), *modules_of(gateway.inference.api)]
    by_dialect = {dialect: structs_of(modules, beginnings) for dialect, beginnings in MODULES.items()}
    assert all(len(structs) > LEAST_FIELDS for structs in by_dialect.values())
    return set().union(*map(declared_twice, by_dialect.values()))


def test_no_struct_repeats_the_fields_of_another(found: set[tuple[str, str]]) -> None:
    assert not found, "build one on the other, or use one for both"


class Small(msgspec.Struct):
    first: int
    second: int
    third: int = msgspec.field(name="3rd")


class Large(msgspec.Struct, rename={"third": "3rd"}):
    third: int
    fourth: int
    first: int
    second: int


class OnSmall(Small):
    fourth: int


def test_fields_are_compared_by_their_names_in_json_and_structs_built_on_each_other_are_not() -> None:
    assert declared_twice([Small, Large, OnSmall]) == {("Small", "Large"), ("Large", "OnSmall")}
