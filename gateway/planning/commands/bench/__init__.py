"""`aio bench`: its commands, and what their options and progress lines share."""

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING

import click

from gateway.operations.cli.group import LazyGroup
from gateway.operations.cli.options import FILE, Command

if TYPE_CHECKING:
    from gateway.planning.load_test import Progress


class BenchGroup(LazyGroup):
    """`aio bench`; the other benchmarks are part of the repository, not of the package."""

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import and return a command. Raises UsageError that says where the other benchmarks are."""
        command = super().get_command(ctx, cmd_name)
        if command is None:
            raise click.UsageError(
                f"No such command {cmd_name!r}. In the repository's folder, run: python -m benchmarks {cmd_name}", ctx
            )
        return command


bench = BenchGroup(
    name="bench",
    help="Measure the core, cards, a server and the tiers on this machine.",
    package="gateway.planning.commands.bench",
    commands={
        "core": (".loads:core", "Throughput and latency of the inference core."),
        "serve": (".loads:serve", "The same over HTTP, or of another server's."),
        "device": (".loads:device", "What the catalogue's cards do, kept next to it."),
        "tiers": (".tiers:tiers", "What each tier gets right, and which are worth their price."),
        "ladder": (
            ".tiers:ladder",
            "What each tier gets right of tasks like those that the ladder's adapter learned.",
        ),
    },
)


def numbers_of(kind: type[int] | type[float]) -> Callable[[click.Context, click.Parameter, str], tuple[float, ...]]:
    """A callback that reads a list such as `1 8 32`."""

    def read(context: click.Context, parameter: click.Parameter, value: str) -> tuple[float, ...]:
        try:
            return tuple(kind(part) for part in value.replace(",", " ").split())
        except ValueError:
            raise click.BadParameter(f"{value!r} is not a list of numbers") from None

    return read


class ManyNumbers(click.Command):
    """Lets `--concurrency 1 8 32` take all words up to the next option, as argparse's nargs="+" does."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Join the words after the options that take several."""
        joined: list[str] = []
        open_option = False
        for word in args:
            if word in ("--concurrency", "--levels", "--rate", "--sequences", "--prompt-tokens", "--rows"):
                open_option = True
                joined += [word, ""]
            elif open_option and not word.startswith("--"):
                joined[-1] = f"{joined[-1]} {word}".strip()
            else:
                open_option = False
                joined.append(word)
        return super().parse_args(ctx, joined)


LOAD_OPTIONS = (
    click.option(
        "--concurrency", callback=numbers_of(int), metavar="N...", default="1 8 32", help="Closed loop: in flight."
    ),
    click.option(
        "--rate",
        callback=numbers_of(float),
        metavar="R...",
        show_default=False,
        default="",
        help="Open loop: Poisson arrivals per second.",
    ),
    click.option("--trace", type=FILE, help="Replay a CSV or JSONL file."),
    click.option("--prompt-tokens", default=128, help="Words per prompt, about one token each."),
    click.option("--output-tokens", default=64),
    click.option("--shared-prefix", default=0, help="Words in front of every prompt, all the same."),
    click.option("--rounds", default=3, help="Closed loop: requests per unit of concurrency."),
    click.option("--requests", default=0, help="Requests per row: at least, at most for a trace."),
    click.option("--duration", default=30.0, help="Seconds of arrivals at a rate."),
    click.option("--trace-speed", default=1.0, help="2 replays twice as fast."),
    click.option("--trace-unit", type=click.Choice(["s", "ms"]), default="s"),
    click.option("--max-prompt", default=0, help="Clip the prompts of a trace."),
    click.option("--seed", default=7),
    click.option("--warmup", default=2, help="Requests before the first row."),
    click.option("--timeout", default=300.0, help="Seconds for one request."),
    click.option("--slo-ttft-ms", type=float, help="Objective for the first token; adds goodput columns."),
    click.option("--slo-itl-ms", type=float, help="Objective for the mean time per later token."),
)


def load_options(command: Command) -> Command:
    """The loads that `BenchOptions` describes, as options."""
    for option in reversed(LOAD_OPTIONS):
        command = option(command)
    return command


def show_progress(now: "Progress") -> None:
    """A line that is redrawn on a terminal; elsewhere one line per load."""
    if now.done < now.total and not sys.stderr.isatty():
        return
    speed = now.output_tokens / max(now.seconds, 1e-9)
    line = f"{now.label}: {now.done}/{now.total}, {now.errors} errors, {speed:.0f} tok/s"
    click.echo(f"\r{line}" if now.done < now.total else f"\r{line}\n", err=True, nl=False)
