"""How far a way of computing strays from the float reference on real text: perplexity, divergence, agreement."""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, get_args

import click
import msgspec

from benchmarks.core.bare_runner import load_runner
from gateway.operations.cli.options import FILE, cache_dir_option, catalog_option, json_option, settings_from
from inference_core.execution.block_memory import allocate_arena
from inference_core.kv_cache.layout import CpuKVDtype
from inference_core.loaders.hub_model import resolve_model_path
from inference_core.loaders.open_checkpoint import open_checkpoint
from inference_core.loading.load_core import layout_of, use_threads
from inference_core.model_spec import CoreSpec
from inference_core.quantization.calibration import Agreement, AgreementTally, Logits, prose
from inference_core.tokenization.load_tokenizer import load_tokenizer
from quality.evaluation.model_outputs import Side, Variant, teacher_forced_logits

REFERENCE = Variant("float32", "float32")
VARIANTS = tuple(
    Variant(compute, kv_dtype)
    for compute in ("float32", "bfloat16", "int4", "int4-int8")
    for kv_dtype in get_args(CpuKVDtype)
)


def bench_quality(
    path: str,
    cache_dir: Path,
    *,
    text: str | None = None,
    variants: tuple[Variant, ...] = VARIANTS,
    tokens: int = 2048,
    window: int = 512,
) -> Iterator[dict[str, Any]]:
    """One row per variant: its names and its `Agreement` with `REFERENCE`.

    The first `tokens` of `text` (default: `prose`) are read in windows of `window`, each from an empty context. The
    reference's logits are kept: tokens x vocabulary x 4 bytes. Raises ModelFileError, and ValueError for a text of
    fewer than two tokens.
    """
    use_threads(None)
    ids = load_tokenizer(resolve_model_path(path)).encode(prose() if text is None else text)[:tokens]
    windows = [ids[start : start + window] for start in range(0, len(ids), window)]
    windows = [part for part in windows if len(part) > 1]
    if not windows:
        raise ValueError(f"the text has {len(ids)} tokens in windows of {window}; at least 2 are needed")
    reference = list(window_logits(path, cache_dir, REFERENCE, windows))
    for variant in variants:
        given = reference if variant == REFERENCE else window_logits(path, cache_dir, variant, windows)
        figures = agreement(windows, reference, given)
        row = {name: round(getattr(figures, name), 6) for name in Agreement.__slots__}
        yield {"compute": variant.compute, "kv_dtype": variant.kv_dtype, **row}


def agreement(windows: list[list[int]], reference: Iterable[Logits], given: Iterable[Logits]) -> Agreement:
    """Compare logits [tokens, vocabulary] of each window."""
    tally = AgreementTally()
    for tokens, exact, other in zip(windows, reference, given, strict=True):
        tally.add(tokens, exact, other)
    return tally.agreement()


def window_logits(
    path: str, cache_dir: Path, variant: Variant, windows: list[list[int]], *, as_prompt: bool = False
) -> Iterator[Logits]:
    """Logits [tokens, vocabulary] of each window, every one from an empty cache through the paged path."""
    spec = Side(path, variant).spec()
    layout = layout_of(spec, open_checkpoint(resolve_model_path(path), cache_dir).config)
    blocks = max(-(-len(part) // spec.block_size) for part in windows)
    core = CoreSpec(models=[spec])
    slabs = -(-blocks // layout.blocks_per_slab(core.slab_bytes))
    runner = load_runner(spec, core, allocate_arena(slabs * core.slab_bytes), cache_dir)
    for part in windows:
        yield teacher_forced_logits(runner, part, as_prompt=as_prompt)


@click.command()
@click.option("--model", help="Model of the catalogue.  [its first]")
@click.option("--text", type=FILE, help="UTF-8 text to read.  [pages of novels and essays in the public domain]")
@click.option("--tokens", default=2048, help="Of the text, at most.")
@click.option("--window", default=512, help="Tokens that share a context.")
@catalog_option
@cache_dir_option
@json_option
def quality(model: str | None, text: Path | None, tokens: int, window: int, as_json: bool, **given: Any) -> None:
    """Perplexity, divergence and agreement with float32, one row per arithmetic and encoding of the KV cache.

    A row passes if the mean normalised dot product of its logits is above 0.99 and its perplexity within 1%.
    """
    from gateway.planning.load_test.run import model_of
    from tiers.catalog.load import load_catalog

    settings = settings_from(**given)
    spec = model_of(load_catalog(settings.catalog).core, model)
    content = None if text is None else text.read_text("utf-8")
    rows = bench_quality(spec.path, settings.cache_path, text=content, tokens=tokens, window=window)
    try:
        for row in rows:
            row = {"model": spec.name, **row}
            click.echo(msgspec.json.encode(row) if as_json else "  ".join(f"{key}={row[key]}" for key in row))
    except ValueError as error:
        raise click.ClickException(str(error)) from error
