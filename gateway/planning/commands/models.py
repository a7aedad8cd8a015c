"""`aio models`: what the catalogue says, whether its files are there, and whether they fit this machine's memory."""

from typing import TYPE_CHECKING, Any

import click

from gateway.operations.cli.options import (
    cache_dir_option,
    catalog_option,
    data_dir_option,
    echo_json,
    json_option,
    settings_from,
    table,
)
from gateway.planning.commands.check_model import check
from gateway.planning.commands.pull import pull

if TYPE_CHECKING:
    from pathlib import Path

    from inference_core.model_spec import CoreSpec, ModelSpec
    from tiers.catalog.catalog import Catalog
    from tiers.catalog.tier_spec import TierSpec


@click.group(invoke_without_command=True)
@click.pass_context
@catalog_option
@data_dir_option
@cache_dir_option
@json_option
def models(context: click.Context, /, as_json: bool, **options: Any) -> None:
    """Show tiers with models, policies and prices, the files behind them, and the memory they need.

    Warns of tiers that `aio bench tiers` found no better than cheaper ones.
    """
    if context.invoked_subcommand is None:
        _show(as_json, options)


models.add_command(check)
models.add_command(pull)


def _show(as_json: bool, given: dict[str, Any]) -> None:
    from quality.evaluation.tier_value import stored_report, warnings_of
    from tiers.catalog.load import load_catalog

    settings = settings_from(**given)
    catalog = load_catalog(settings.catalog)
    files = [_file(model, settings.cache_path) for model in catalog.core.models]
    memory = _memory(catalog.core, files)
    groups = _groups(catalog)
    report = stored_report(settings.data_path, catalog)
    warnings = [] if report is None else warnings_of(report, catalog)
    if as_json:
        echo_json(
            {
                "catalog": catalog,
                "files": files,
                "memory": memory,
                "groups": groups,
                "accuracy": report,
                "warnings": warnings,
            }
        )
        return
    click.echo(f"catalogue {catalog.name}: {catalog.description}\n")
    click.echo(_tiers(catalog))
    if report is None and not catalog.gpu_groups:
        click.echo("\nit is not measured here whether the more expensive tiers are better: run `aio bench tiers`")
    for line in warnings:
        click.secho(f"\nwarning: {line}", fg="yellow")
    if files:
        click.echo("\n" + _files(files))
        click.echo("\n" + "\n".join(memory))
    for group in groups:
        click.echo("\n" + "\n".join([*group["memory"], *(f"  {problem}" for problem in group["problems"])]))


def _tiers(catalog: "Catalog") -> str:
    rows = [
        [
            str(tier.number),
            "–" if tier.tier_class is None else tier.tier_class.value,
            tier.served_name,
            str(type(tier.policy).__struct_config__.tag),
            f"${tier.price.input_usd_per_million:g}",
            f"${tier.price.output_usd_per_million:g}{_estimated(tier)}",
            _where(catalog, tier),
        ]
        for tier in catalog.tiers
    ]
    return table(["tier", "class", "model", "policy", "in $/M", "out $/M", "where"], rows)


def _estimated(tier: "TierSpec") -> str:
    """Note the estimated price where the catalogue gives none."""
    return f" (estimated by {tier.price.estimated})" if tier.price.estimated else ""


def _where(catalog: "Catalog", tier: "TierSpec") -> str:
    """A URL, or what computes the tier."""
    group = None if tier.model is None else catalog.core_of(tier.model)
    return tier.url if group in (None, "cpu") else f"GPU group {group}"


def _groups(catalog: "Catalog") -> list[dict[str, Any]]:
    """GPU groups: their cards, the arithmetic of their memory, and what this machine lacks for them."""
    if not catalog.gpu_groups:
        return []
    from inference_core.device.cards import visible_cards
    from inference_core.errors import CoreError
    from tiers.catalog.hardware_check import require_servable, validate_files
    from tiers.errors import CatalogError

    cards = visible_cards()
    shown = []
    for group in catalog.gpu_groups:
        problems = [] if group in catalog.served_groups else ["no tier runs on it: it is used for planning only"]
        try:
            require_servable(catalog, cards, [group.name])
            validate_files(catalog, [group.name])
        except (CoreError, CatalogError) as error:
            problems.append(str(error))
        numbers = list(catalog.cards_of(group))
        shown.append({"name": group.name, "cards": numbers, "memory": group.memory_lines(), "problems": problems})
    return shown


def _file(model: "ModelSpec", cache: "Path") -> dict[str, Any]:
    """Show one model's file and what it needs; `problem` says why it cannot be used."""
    from inference_core.errors import CoreError
    from inference_core.extras import optional_imports
    from inference_core.loaders.model_path import resolve_model_path
    from inference_core.loaders.open_checkpoint import open_checkpoint
    from inference_core.loaders.sparsity import describe_sparsity

    shown: dict[str, Any] = {"name": model.name, "path": model.path, "compute": model.compute, "problem": None}
    try:
        with optional_imports("serving it"):
            from inference_core.loading.load_core import layout_of, weight_bytes
        path = resolve_model_path(model.path)
        checkpoint = open_checkpoint(path, cache)
        config = checkpoint.config
        layout = layout_of(model, config)
    except CoreError as error:
        return shown | {"problem": str(error)}
    return shown | {
        "file_bytes": path.stat().st_size if path.is_file() else sum(p.stat().st_size for p in path.glob("*")),
        "context": min(model.max_context or config.max_position, config.max_position),
        "weight_bytes": weight_bytes(checkpoint, model),
        "sparsity": describe_sparsity(checkpoint),
        "kv_bytes_per_token": layout.block_bytes // layout.block_size,
    }


def _files(files: list[dict[str, Any]]) -> str:
    from inference_core.kv_cache.memory_plan import format_bytes

    rows = [
        [file["name"], file["compute"], file["problem"], "", ""]
        if file["problem"]
        else [
            file["name"],
            file["compute"],
            format_bytes(file["file_bytes"]),
            f"{file['context']:,} tokens",
            f"{file['kv_bytes_per_token']:,} bytes",
        ]
        for file in files
    ]
    return table(["model", "compute", "file", "context", "KV per token"], rows)


def _memory(core: "CoreSpec", files: list[dict[str, Any]]) -> list[str]:
    """Show the memory sum that a start checks, line by line."""
    from inference_core.kv_cache.memory_plan import format_bytes

    usable = [file for file in files if not file["problem"]]
    if not usable:
        return []
    from inference_core.loading.load_core import available_memory

    total = sum(file["weight_bytes"] for file in usable) + core.arena_bytes
    available = available_memory()
    tokens = [f"{core.arena_bytes // file['kv_bytes_per_token']:,} of {file['name']}" for file in usable]
    return [
        *(f"weights of {file['name']} ({file['compute']}): {format_bytes(file['weight_bytes'])}" for file in usable),
        *(f"{file['name']} is {file['sparsity']}" for file in usable if file["sparsity"]),
        f"KV arena: {format_bytes(core.arena_bytes)}, tokens if one model uses all of it: {', '.join(tokens)}",
        f"sum: {format_bytes(total)}; available now: {format_bytes(available)}: "
        + ("fits" if total <= available else "DOES NOT FIT"),
    ]
