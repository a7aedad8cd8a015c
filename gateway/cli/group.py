"""A command group that knows its commands by name and help text, and imports one only to run it; and which errors a
user can fix: their messages say how, so they are shown without a traceback."""

import importlib
import os
import sys
from collections.abc import Sequence
from typing import Any

import click

from gateway import __version__
from gateway.base.derived_settings import complete_user
from inference_core.native.control_groups import bound_libraries

# Help is as wide as the terminal, up to the width at which lines are still easy to read.
MOST_COLUMNS = 120
_SERVING = (["serve"], ["worker"])


# By name, so that `--help` and click's own errors import none of the packages below.
_EXPECTED = {
    "gateway.base.settings": {"SettingsError"},
    "tiers.errors": {"CatalogError", "TierUnavailableError"},
    "inference_core.errors": {"ModelFileError", "MemoryPlanError", "CoreGoneError", "CoreError", "InvalidRequestError"},
    "classifier.errors": {"ClassifierError"},
    "quality.store.database": {"SchemaError", "DatabaseAwayError"},
    "inference_core.io.files": {"SecretError"},
    "quality.store.drivers": {"DatabaseUrlError"},
    "quality.rollout.experiments": {"ExperimentError"},
    "quality.retraining.schedule": {"CronError"},
    "quality.records.redaction": {"RedactionError"},
    "quality.distillation.examples": {"ExampleFileError"},
    "quality.distillation.train": {"DistillationError", "NoGainError"},
    "quality.evaluation.tier_accuracy": {"TierMeasurementError", "ReportFileError"},
    "quality.evaluation.everyday_outcomes": {"EverydayOutcomesError"},
    "quality.learning.outcome_import": {"OutcomeFileError"},
    "gateway.operations.setup.found_tiers": {"SetupError"},
    "quality.retraining.training_process": {"TrainingProcessError"},
    "gateway.planning.backtests.log": {"BacktestLogError"},
    "gateway.tenancy.changes": {"TenancyError"},
    "gateway.base.errors": {"ApiError"},
    "gateway.planning.capacity.workload": {"PlanError", "TraceError"},
    "gateway.runtime.cluster.placement": {"ClusterError"},
    "gateway.processes.announcement": {"ServerStartError", "ServerStoppedError"},
}


class LazyGroup(click.Group):
    """`commands` maps a name to (`module:attribute`, help line); `.module` is one of `package`. The help of commands
    below shows defaults, but of options with `show_default=False`."""

    def __init__(self, name: str, help: str, commands: dict[str, tuple[str, str]], package: str | None = None) -> None:
        settings = {"help_option_names": ["-h", "--help"], "max_content_width": MOST_COLUMNS, "show_default": True}
        super().__init__(name=name, help=help, context_settings=settings)
        self._lazy, self._package = commands, package

    def main(self, args: Sequence[str] | None = None, *others: Any, **kwargs: Any) -> Any:
        """Run the program, also as a user without a home folder or a name, and with the threads of its quota.
        What serves writes JSON alone, if the log is to be JSON."""
        complete_user(os.environ)
        bound_libraries(os.environ)
        arguments = list(sys.argv[1:] if args is None else args)
        if arguments[:1] in _SERVING and os.environ.get("AIO_LOG_FORMAT", "").strip().lower() == "json":
            from gateway.base.logs import all_as_json

            with all_as_json():
                return super().main(arguments, *others, **kwargs)
        return super().main(arguments, *others, **kwargs)

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
        try:
            return super().invoke(ctx)
        except Exception as error:
            if (told := told_error(error)) is not None:
                raise click.ClickException(getattr(told, "for_operators", str(told))) from error
            if (needed := missing_extra(error) or unusable_database(error)) is not None:
                raise click.ClickException(needed) from error
            raise

    def version_option(self) -> click.Option:
        def show(ctx: click.Context, param: click.Parameter, value: bool) -> None:
            if value and not ctx.resilient_parsing:
                click.echo(f"aio {__version__}")
                ctx.exit()

        return click.Option(
            ["--version"], is_flag=True, expose_value=False, is_eager=True, callback=show, help="Show the version."
        )


def told_error(error: BaseException | None) -> BaseException | None:
    """Return the first of `error`, its causes and the first of its group whose type has messages for the user."""
    while error is not None:
        if any(kind.__name__ in _EXPECTED.get(kind.__module__, ()) for kind in type(error).__mro__):
            return error
        error = error.exceptions[0] if isinstance(error, BaseExceptionGroup) else error.__cause__
    return None


def unusable_database(error: Exception) -> str | None:
    """Return a sentence if `error` says that the database is away or damaged, else None."""
    if not type(error).__module__.startswith("sqlalchemy."):
        return None
    from quality.store.database import said_of_unusable

    said = said_of_unusable(error)
    return None if said is None else f"the database {said}"


def missing_extra(error: Exception) -> str | None:
    """Return what to install, if `error` is the import of a package that belongs to an extra; else None."""
    from inference_core.extras import extra_of, install_command

    if not isinstance(error, ModuleNotFoundError) or (extra := extra_of(error.name)) is None:
        return None
    return f"this command needs {error.name}: {install_command(extra)}"
