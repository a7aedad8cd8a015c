"""A value that is none of a few is refused with those that are allowed."""

from enum import Enum
from typing import Annotated, Any, Literal

import msgspec
import pytest

from gateway.cli.group import told_error
from quality.store.drivers import DatabaseUrlError
from tiers.dialects.decoding import explained


class Colour(Enum):
    RED = "red"
    BLUE = "blue"


class Inner(msgspec.Struct):
    kind: Literal["a", "b"] | None = None
    colours: list[Colour] = []
    name: str = msgspec.field(default="", name="Name")


class Outer(msgspec.Struct):
    inner: Inner | list[Inner] | None = None
    by_name: dict[str, Inner] = {}
    tags: dict[Annotated[str, msgspec.Meta(pattern="^a - [b`$]", description="a word of ours")], int] = {}


def refused(values: Any) -> str:
    with pytest.raises(msgspec.ValidationError) as error:
        msgspec.convert(values, Outer)
    return explained(error.value, Outer)


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"inner": {"kind": "c"}}, "Invalid enum value 'c'; allowed are a, b - at `$.inner.kind`"),
        ({"inner": [{"kind": "c"}]}, "Invalid enum value 'c'; allowed are a, b - at `$.inner[0].kind`"),
        ({"by_name": {"x.y": {"kind": "c"}}}, "Invalid enum value 'c'; allowed are a, b - at `$.by_name[...].kind`"),
        (
            {"inner": {"colours": ["green"]}},
            "Invalid enum value 'green'; allowed are red, blue - at `$.inner.colours[0]`",
        ),
        ({"tags": {"x": 1}}, "Expected `str` of a word of ours - at `key` in `$.tags`"),
        ({"inner": {"Name": 1}}, "Expected `str`, got `int` - at `$.inner.Name`"),
    ],
)
def test_what_is_allowed_is_named(values: Any, said: str) -> None:
    assert refused(values) == said


def test_an_error_for_the_user_is_found_before_its_cause_and_within_a_group() -> None:
    clear = DatabaseUrlError("say what to do")
    clear.__cause__ = ValueError("of a library")
    assert told_error(ExceptionGroup("start", [clear])) is clear
    outer = RuntimeError("start")
    outer.__cause__ = clear
    assert told_error(outer) is clear
    assert told_error(clear.__cause__) is None
