"""`python -m benchmarks prompts`: fast prompts against exact ones."""

from pathlib import Path
from typing import Any

import click
import msgspec

from gateway.operations.cli.options import cache_dir_option, catalog_option, json_option, settings_from

_PARTS = ("text", "answers")


@click.command()
@click.option("--model", help="Model of the catalogue.  [its first]")
@click.option("--part", "parts", type=click.Choice(_PARTS), multiple=True, help="What to measure.  [everything]")
@click.option("--emulated", is_flag=True, help="Emulate the tiles of AMX, on any processor, slowly.")
@click.option(
    "--prompts",
    multiple=True,
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="JSON lines with `prompt`, or `turns` whose first is asked.  [chat_prompts and gsm8k_sample of AIO_DATA]",
)
@click.option("--count", default=200, show_default=True, help="Prompts to ask.")
@click.option("--answer", default=32, show_default=True, help="Tokens of each greedy answer, at most.")
@click.option("--tokens", default=1024, show_default=True, help="Tokens of the text.")
@catalog_option
@cache_dir_option
@json_option
def prompts(model: str | None, parts: tuple[str, ...], emulated: bool, as_json: bool, **given: Any) -> None:
    """Fast prompts against exact ones: perplexity on prose, greedy answers to real prompts."""
    from inference_core.native import cpu
    from tiers.catalog.load import load_catalog

    options = {name: given.pop(name) for name in ("prompts", "count", "answer", "tokens")}
    if not cpu.AVAILABLE:
        raise click.ClickException("the native CPU kernels were not built: install a C++ compiler and reinstall")
    chosen = cpu.extension().instruction_set()
    if cpu.extension().prompt_format() is None and not emulated:
        click.echo(
            f"This machine's kernels are {chosen}: prompts are computed as generated tokens are. --emulated compares "
            "the arithmetic of AMX."
        )
        return
    settings = settings_from(**given)
    specs = {spec.name: spec for spec in load_catalog(settings.catalog).core.models}
    name = model or next(iter(specs), "")
    if name not in specs:
        raise click.ClickException(f"the catalogue has no model {name!r} on its core; it has {', '.join(specs)}")
    fast = "amx-emulated" if emulated else chosen
    for part in parts or _PARTS:
        for row in _rows(part, specs[name], settings.cache_path, fast, options):
            row = {"model": name, "kernels": fast, **row}
            click.echo(msgspec.json.encode(row) if as_json else "  ".join(f"{key}={row[key]}" for key in row))


def _rows(part: str, spec: Any, cache: Path, fast: str, options: dict[str, Any]) -> Any:
    from benchmarks.core import prompt_accuracy
    from benchmarks.core.workloads import read_prompts
    from classifier.training.data.dataset import data_folder

    if part == "text":
        return prompt_accuracy.compare_on_text(spec, cache, fast, tokens=options["tokens"], window=512)
    folder = data_folder()
    paths = options["prompts"] or (folder / "chat_prompts.jsonl", folder / "gsm8k_sample.jsonl")
    try:
        prompts = read_prompts(paths, options["count"])
    except OSError as error:
        raise click.ClickException(f"no prompts: {error}; name a file with --prompts") from error
    return [prompt_accuracy.compare_answers(spec, cache, fast, prompts, answer_tokens=options["answer"])]
