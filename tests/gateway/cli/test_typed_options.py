"""Options from the fields of a struct: names, types, bounds, defaults and help are the fields'."""

from pathlib import Path
from typing import Annotated, Literal

import click
import msgspec
import pytest
from click.testing import CliRunner, Result
from msgspec import Meta

from gateway.base.field_types import Count, ExistingFile, NewFolder
from gateway.base.settings import Settings
from gateway.cli.options import with_settings
from gateway.cli.typed_options import options_of


class Shared(msgspec.Struct, frozen=True, kw_only=True):
    """Options that several commands share."""

    tokens: Annotated[int, Meta(ge=1, extra={"envvar": "TOKENS"})] = 5
    """Tokens of an answer."""
    clip: Annotated[float, Meta(extra={"option": False})] = 1.0


class Loads(Shared, frozen=True, kw_only=True):
    """Options of a command."""

    start: Annotated[str, Meta(title="NAME")] | None = msgspec.field(name="from", default=None)
    """Where it starts. [the first]"""
    rounds: Count = 3
    share: Annotated[float, Meta(gt=0, lt=1)] = 0.5
    unit: Literal["s", "ms"] = "s"
    levels: tuple[Count, ...] = (1, 8)
    names: tuple[str, ...] = msgspec.field(name="name", default=())
    check: bool = False
    local_only: bool | None = None
    file: Path | None = None
    yes: Annotated[bool, Meta(extra={"short": "-y"})] = False
    symmetric: Annotated[bool, Meta(extra={"off": "--asymmetric"})] | None = None
    second: bool = True
    kinds: tuple[Literal["copy", "spell"], ...] = msgspec.field(name="kind", default=())
    inputs: tuple[ExistingFile, ...] = msgspec.field(name="input", default=())
    output: NewFolder | None = None


@click.command(context_settings={"show_default": True})
@options_of(Loads)
def command(options: Loads) -> None:
    click.echo(repr(options))


def run(*arguments: str) -> Result:
    return CliRunner().invoke(command, arguments)


def test_without_options_it_has_its_defaults() -> None:
    assert run().output == f"{Loads()!r}\n"


@pytest.mark.parametrize(
    ("arguments", "changed"),
    [
        ("--from a", {"start": "a"}),
        ("--rounds 4", {"rounds": 4}),
        ("--unit ms", {"unit": "ms"}),
        ("--levels 2,3", {"levels": (2, 3)}),
        ("--name a --name b", {"names": ("a", "b")}),
        ("--check", {"check": True}),
        ("--local-only", {"local_only": True}),
        ("--no-local-only", {"local_only": False}),
        ("--file a/b", {"file": Path("a/b")}),
        ("--tokens 2", {"tokens": 2}),
        ("-y", {"yes": True}),
        ("--asymmetric", {"symmetric": False}),
        ("--no-second", {"second": False}),
        ("--kind spell --kind copy", {"kinds": ("spell", "copy")}),
        ("--output none", {"output": Path("none")}),
    ],
)
def test_an_option_sets_its_field(arguments: str, changed: dict[str, object]) -> None:
    assert run(*arguments.split()).output == f"{msgspec.structs.replace(Loads(), **changed)!r}\n"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ("--rounds 0", "'--rounds': 0 is not in the range x>=1"),
        ("--share 1", "'--share': 1.0 is not in the range 0<x<1"),
        ("--unit h", "'--unit': 'h' is not one of 's', 'ms'"),
        ("--levels a", "'--levels': 'a' is not a list of numbers"),
        ("--levels 1,0", "levels"),
        ("--kind write", "'--kind': 'write' is not one of 'copy', 'spell'"),
        ("--input none", "'--input': File 'none' does not exist"),
        (f"--output {__file__}", "is a file"),
        ("--clip 2", "No such option"),
    ],
)
def test_a_value_that_is_not_allowed_is_refused_with_what_is(arguments: str, said: str) -> None:
    result = run(*arguments.split())
    assert result.exit_code == 2
    assert said in result.output


def test_an_environment_variable_sets_an_option() -> None:
    assert CliRunner().invoke(command, env={"TOKENS": "7"}).output == f"{Loads(tokens=7)!r}\n"


def test_a_command_gets_the_settings_that_its_options_override(monkeypatch: pytest.MonkeyPatch) -> None:
    @click.command()
    @with_settings("port", "catalog", "core_socket", role="gateway")
    def shown(settings: Settings) -> None:
        click.echo(f"{settings.port} {settings.catalog} {settings.core_socket} {settings.role}")

    monkeypatch.setenv("AIO_PORT", "81")
    monkeypatch.setenv("AIO_CATALOG", "laptop")
    assert CliRunner().invoke(shown, ["--catalog", "ladder", "--socket", "s"]).output == "81 ladder s gateway\n"
    assert CliRunner().invoke(shown, ["--port", "82"]).output == "82 laptop  gateway\n"


def test_the_help_is_the_text_under_the_field() -> None:
    assert "Tokens of an answer." in run("--help").output, "also of a struct that it extends"
    assert "--from NAME " in run("--help").output
    assert "Where it starts.  [the first]" in run("--help").output
