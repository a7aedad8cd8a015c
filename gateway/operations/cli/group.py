"""A command group that knows its commands by name and help text, and imports one only to run it."""

import importlib
from typing import Any

import click

from gateway import __version__

# Help is as wide as the terminal, up to the width at which lines are still easy to read.
MOST_COLUMNS = 120


class LazyGroup(click.Group):
    """`commands` maps a name to (`module:attribute`, help line); `.module` is one of `package`. The help of commands
    below shows defaults, but of options with `show_default=False`."""

    def __init__(self, name: str, help: str, commands: dict[str, tuple[str, str]], package: str | None = None) -> None:
        settings = {"help_option_names": ["-h", "--help"], "max_content_width": MOST_COLUMNS, "show_default": True}
        super().__init__(name=name, help=help, context_settings=settings)
        self._lazy, self._package = commands, package

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Names in the order of their declaration."""
        return list(self._lazy)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import and return a command."""
        entry = self._lazy.get(cmd_name)
        if entry is None:
            return None
        module, _, attribute = entry[0].partition(":")
        command: click.Command = getattr(importlib.import_module(module, self._package), attribute)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Print the commands in `--help` without importing any."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in self._lazy.items()])

    def invoke(self, ctx: click.Context) -> Any:
        """Run a command; errors meant for the user are printed without a traceback."""
        from gateway.operations.cli.errors import expected_error, missing_extra

        try:
            return super().invoke(ctx)
        except Exception as error:
            if expected_error(error):
                raise click.ClickException(str(error)) from error
            if (needed := missing_extra(error)) is not None:
                raise click.ClickException(needed) from error
            raise

    def version_option(self) -> click.Option:
        """`--version`."""

        def show(ctx: click.Context, param: click.Parameter, value: bool) -> None:
            if value and not ctx.resilient_parsing:
                click.echo(f"aio {__version__}")
                ctx.exit()

        return click.Option(
            ["--version"], is_flag=True, expose_value=False, is_eager=True, callback=show, help="Show the version."
        )
