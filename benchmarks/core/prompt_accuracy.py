"""What prompt arithmetic changes: perplexity on real text, and greedy answers to real prompts."""

import statistics
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click
import msgspec

from benchmarks.core.quality import REFERENCE, agreement, window_logits
from benchmarks.core.workloads import read_prompts
from gateway.operations.cli.options import cache_dir_option, catalog_option, json_option, settings_from
from inference_core.loaders.hub_model import resolve_model_path
from inference_core.loading.load_core import use_threads
from inference_core.model_spec import ModelSpec
from inference_core.native import cpu
from inference_core.quantization.calibration import Agreement, prose
from inference_core.tokenization.load_tokenizer import load_tokenizer
from quality.evaluation.model_outputs import Side, Variant, greedy_continuations

MOST_PROMPT_TOKENS = 512


@contextmanager
def kernels(name: str) -> Iterator[None]:
    """Compute with the kernels `name` meanwhile. Raises ValueError if this processor has none."""
    before = cpu.extension().instruction_set()
    cpu.extension().use_instruction_set(name)
    try:
        yield
    finally:
        cpu.extension().use_instruction_set(before)


def compare_on_text(
    spec: ModelSpec, cache_dir: Path, fast: str, *, tokens: int, window: int
) -> Iterator[dict[str, Any]]:
    """One row per arithmetic of prompts: its `Agreement` with float32 on `tokens` of prose, and of the fast one with
    the exact one. `fast`: the kernels with prompt arithmetic. Raises ModelFileError."""
    use_threads(None)
    ids = load_tokenizer(resolve_model_path(spec.path)).encode(prose())[:tokens]
    windows = [ids[start : start + window] for start in range(0, len(ids) - 1, window)]
    variant = Variant(spec.compute, spec.kv_dtype)  # type: ignore[arg-type]
    reference = list(window_logits(spec.path, cache_dir, REFERENCE, windows))
    with kernels(fast):
        exact = list(window_logits(spec.path, cache_dir, variant, windows))
        given = list(window_logits(spec.path, cache_dir, variant, windows, as_prompt=True))
        for arithmetic, against, logits, other in (
            ("exact", "float32", exact, reference),
            ("fast", "float32", given, reference),
            ("fast", "exact", given, exact),
        ):
            figures = agreement(windows, other, logits)
            row = {name: round(getattr(figures, name), 6) for name in Agreement.__slots__}
            yield {
                "part": "text", "prefill_arithmetic": arithmetic, "against": against, "tokens": len(ids), **row
            }  # fmt: skip


def compare_answers(
    spec: ModelSpec, cache_dir: Path, fast: str, prompts: list[str], *, answer_tokens: int
) -> dict[str, Any]:
    """How many greedy answers are the same, and where the others part. Prompts longer than `MOST_PROMPT_TOKENS` are
    left out. Raises ModelFileError."""
    side = Side(spec.path, Variant(spec.compute, spec.kv_dtype))  # type: ignore[arg-type]
    tokenizer = side.tokenizer()
    asked = [tokenizer.encode_chat([{"role": "user", "content": prompt}]) for prompt in prompts]
    asked = [ids for ids in asked if len(ids) <= MOST_PROMPT_TOKENS]
    with kernels(fast):
        quick = greedy_continuations(side, cache_dir, asked, answer_tokens)
        exact = greedy_continuations(side, cache_dir, asked, answer_tokens, prefill_arithmetic="exact")
    return {"part": "answers", "prompt_tokens": sum(map(len, asked)), **shared_answers(quick, exact)}


def shared_answers(fast: list[list[int]], exact: list[list[int]]) -> dict[str, Any]:
    """Shares of answers that are the same whole and in their first token, and the tokens before the others part."""
    pairs = list(zip(fast, exact, strict=True))
    parts = [_common(a, b) for a, b in pairs if a != b]
    return {
        "prompts": len(pairs),
        "same": round(sum(a == b for a, b in pairs) / len(pairs), 4),
        "same_first_token": round(sum(a[:1] == b[:1] for a, b in pairs) / len(pairs), 4),
        "median_tokens_before_they_part": statistics.median(parts) if parts else None,
    }


def _common(a: list[int], b: list[int]) -> int:
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


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
    from gateway.planning.load_test.open_core import model_of
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
    spec = model_of(load_catalog(settings.catalog).core, model)
    fast = "amx-emulated" if emulated else chosen
    for part in parts or _PARTS:
        for row in _rows(part, spec, settings.cache_path, fast, options):
            row = {"model": spec.name, "kernels": fast, **row}
            click.echo(msgspec.json.encode(row) if as_json else "  ".join(f"{key}={row[key]}" for key in row))


def _rows(part: str, spec: Any, cache: Path, fast: str, options: dict[str, Any]) -> Any:
    from classifier.training.data.dataset import data_folder

    if part == "text":
        return compare_on_text(spec, cache, fast, tokens=options["tokens"], window=512)
    folder = data_folder()
    paths = options["prompts"] or (folder / "chat_prompts.jsonl", folder / "gsm8k_sample.jsonl")
    try:
        prompts = read_prompts(paths, options["count"])
    except OSError as error:
        raise click.ClickException(f"no prompts: {error}; name a file with --prompts") from error
    return [compare_answers(spec, cache, fast, prompts, answer_tokens=options["answer"])]
