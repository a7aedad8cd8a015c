"""`python -m benchmarks speculation` and `workloads`: what drafts are worth, and what each kind of request gets."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from benchmarks.commands.kept import kept_options, show_measurement
from gateway.planning.commands.bench import ManyNumbers, numbers_of

if TYPE_CHECKING:
    from benchmarks.core.speculation import SpeculationOptions, SpeculationResults

_MODEL = "Model of the catalogue.  [its first, or the first with a draft]"
_WAY = click.Choice(["prompt_lookup", "draft_model"])


@click.command(cls=ManyNumbers)
@click.option("--model", help=_MODEL)
@click.option("--way", type=_WAY, default="prompt_lookup", show_default=True)
@click.option("--rounds", default=5, show_default=True, help="Pairs of each workload and level.")
@click.option(
    "--levels", callback=numbers_of(int), metavar="N...", default="1 8 32", show_default=True, help="In flight."
)
@click.option("--requests", default=8, show_default=True, help="Requests of a level at least.")
@click.option("--output-tokens", default=96, show_default=True, help="Of an answer, at most.")
@click.option("--seed", default=7, show_default=True)
@kept_options
def speculation(**given: Any) -> None:
    """The same requests without and with drafts, in turn, on text to be copied and on open chat.

    Example: python -m benchmarks speculation --way draft_model --levels 1 --rounds 7
    """
    from benchmarks.core.speculation import SpeculationOptions
    from benchmarks.report.tables import speculation_table

    show_measurement(given, SpeculationOptions, _run, speculation_table)


@click.command(cls=ManyNumbers)
@click.option("--model", help=_MODEL)
@click.option("--way", type=_WAY, default="prompt_lookup", show_default=True)
@click.option(
    "--workload",
    "workloads",
    type=click.Choice(["chat", "code", "json", "long"]),
    multiple=True,
    help="Chat of 50 tokens, code of 1,000, JSON of 300 in a grammar, answers of 4,096; may be repeated.  "
    "[all, or none with --prompts]",
)
@click.option(
    "--prompts",
    type=click.Path(exists=True, dir_okay=False),
    help="Your own prompts as a workload: JSON lines with `prompt`, or `turns` whose first is asked.",
)
@click.option(
    "--mode",
    "modes",
    type=click.Choice(["auto", "on"]),
    multiple=True,
    help="Compared with no drafts: as many as pay, or always the most; may be repeated.  [both]",
)
@click.option("--rounds", default=3, show_default=True, help="Times that every load is measured in every mode.")
@click.option("--levels", callback=numbers_of(int), metavar="N...", default="1 8", show_default=True, help="In flight.")
@click.option("--requests", type=int, help="Requests of a load at least.  [16 of chat, 8 of JSON, 4 of code, 1 long]")
@click.option("--output-tokens", default=4096, show_default=True, help="Of an answer, at most.")
@click.option("--seed", default=7, show_default=True)
@kept_options
def workloads(**given: Any) -> None:
    """Each kind of request on its own: speed, latency, and what drafts are worth for it.

    Example: python -m benchmarks workloads --prompts mine.jsonl --rounds 3 --out workloads.jsonl
    """
    from benchmarks.core.speculation import SpeculationOptions
    from benchmarks.core.workloads import MIXES, OWN
    from benchmarks.report.tables import workloads_table

    chosen = given["workloads"] or (() if given["prompts"] else MIXES)
    given["prompts"] = given["prompts"] or ""
    given["workloads"] = (*chosen, *([OWN] if given["prompts"] else []))
    given["modes"] = ("off", *(given["modes"] or ("auto", "on")))
    show_measurement(given, SpeculationOptions, _run, workloads_table)


async def _run(
    settings: Any, model: str | None, options: "SpeculationOptions", out: Path | None, keep: bool
) -> "SpeculationResults":
    from benchmarks.core.core_memory import roomy
    from benchmarks.core.speculation import speculate
    from benchmarks.core.workloads import WorkloadTarget, content_digest, workload
    from benchmarks.report.measurement import Measurement
    from gateway.planning.load_test.open_core import core_target, model_of
    from inference_core.loaders.hub_model import resolve_model_path
    from inference_core.tokenization.load_tokenizer import load_tokenizer
    from tiers.catalog.load import load_catalog

    core = load_catalog(settings.catalog).core
    drafted = (spec.name for spec in core.models if spec.draft is not None)
    spec = model_of(core, model or (next(drafted, None) if options.way == "draft_model" else None))
    draft = model_of(core, spec.draft) if options.way == "draft_model" and spec.draft is not None else None
    try:
        answers = [workload(name, options.prompts).answer_tokens for name in options.workloads]
    except ValueError as error:
        raise click.ClickException(str(error)) from error
    longest = _PROMPT_TOKENS + min(options.output_tokens, max(answers))
    sequences = max(options.levels) * (1 if draft is None else 2)
    # A draft model has its keys and values in the same arena.
    core, _ = roomy(core, spec, settings.cache_path, sequences=sequences, tokens_each=longest)
    asked = content_digest(options.prompts) if options.prompts else None
    measured = {"model": spec, "draft": draft, "threads": core.threads, "options": options, "prompts_sha256": asked}
    measurement = Measurement.begin("speculation", measured, out, keep=keep)
    async with core_target(core, spec, settings.cache_path, draft=draft) as opened:
        target = WorkloadTarget(opened.client, load_tokenizer(resolve_model_path(spec.path)), spec.name)
        return await speculate(target, options, measurement, lambda line: click.echo(line, err=True))


# More than any prompt of a workload has, but for one's own.
_PROMPT_TOKENS = 800
