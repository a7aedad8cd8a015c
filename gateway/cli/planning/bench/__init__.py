"""`aio bench`: its commands, and what their options and progress lines share."""

import sys
from typing import TYPE_CHECKING

import click

from gateway.cli.group import LazyGroup

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
    package="gateway.cli.planning.bench",
    commands={
        "core": (".loads:core", "Throughput and latency of the inference core."),
        "tradeoffs": (".tradeoffs:tradeoffs", "Speed, memory and quality of a model by arithmetic and KV cache."),
        "serve": (".loads:serve", "The same of a running server, over HTTP."),
        "device": (".loads:device", "What the catalogue's cards do, kept next to it."),
        "tiers": (".tiers:tiers", "What each tier gets right, and which are worth their price."),
        "ladder": (
            ".tiers:ladder",
            "What each tier gets right of tasks like those that the ladder's adapter learned.",
        ),
    },
)


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


def show_progress(now: "Progress") -> None:
    """A line that is redrawn on a terminal; elsewhere one line per load."""
    if now.done < now.total and not sys.stderr.isatty():
        return
    speed = now.output_tokens / max(now.seconds, 1e-9)
    line = f"{now.label}: {now.done}/{now.total}, {now.errors} errors, {speed:.0f} tok/s"
    click.echo(f"\r{line}" if now.done < now.total else f"\r{line}\n", err=True, nl=False)
