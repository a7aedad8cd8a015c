"""The OpenAPI document has the docstrings under the fields of bodies and answers."""

from typing import Generic, TypeVar

import msgspec

from gateway.edge.openapi import _inlined

Row = TypeVar("Row")


class Base(msgspec.Struct):
    """What all have."""

    inherited: int
    """Said by the base."""


class Inner(Base):
    """A part."""

    renamed: str = msgspec.field(name="asCallersSee")
    """By its own
    name.
    """
    silent: int = 0


class Outer(msgspec.Struct, Generic[Row]):
    """The whole."""

    part: Inner
    """Says more than the part's docstring."""
    rows: list[Row]
    """In order."""


def test_a_field_is_described_by_the_docstring_under_it() -> None:
    schema = _inlined(Outer[Inner])
    assert schema["description"] == "The whole."
    part, rows = schema["properties"]["part"], schema["properties"]["rows"]
    assert part["description"] == "Says more than the part's docstring."
    assert rows["description"] == "In order."
    assert rows["items"]["description"] == "A part."
    assert {name: value.get("description") for name, value in part["properties"].items()} == {
        "inherited": "Said by the base.",
        "asCallersSee": "By its own name.",
        "silent": None,
    }
