"""`aio models`: what the catalogue says, whether its files are there, and whether they fit this machine's memory;
`check`: whether a model is served here, before gigabytes are downloaded; `pull`: download models by their Hugging Face
ids, before or instead of a start of the server.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from gateway.base.settings import Settings
from gateway.cli.options import MACHINE, echo_json, json_option, setting_options, settings_from, table, with_settings

if TYPE_CHECKING:
    from pathlib import Path

    from gateway.planning.model_check import DeviceSupport, ModelCheck
    from inference_core.loaders.hub_model import Form
    from inference_core.model_spec import CoreSpec, ModelSpec
    from tiers.catalog.catalog import Catalog
    from tiers.catalog.gpu_group import GpuGroupSpec
    from tiers.catalog.tier_spec import TierSpec


# The oldest generation that the kernels support, for catalogues that give only a card's memory.
_ANY_CARD_CAPABILITY = 8.0
# Tokens of the sequence that a placement has to hold.
_PLACED_CONTEXT = 8192


@click.command(name="check")
@click.argument("model", metavar="PATH|HF_ID")
@json_option
@click.pass_context
def check(context: click.Context, model: str, as_json: bool) -> None:
    """Show whether a model is served here, on which devices and with how much memory.

    Of a Hugging Face id, `org/name[:QUANT][@REVISION]`, only settings, tokeniser and the headers of the weights are
    read. Ends with 1 if no device serves it; the engine line then says what does.
    """
    from gateway.planning.model_check import check_model

    checked = check_model(model)
    if as_json:
        import msgspec

        echo_json(msgspec.to_builtins(checked) | {"works": checked.works})
    else:
        click.echo("\n".join(_lines(checked)))
    context.exit(0 if checked.works else 1)


def _lines(checked: "ModelCheck") -> list[str]:
    from inference_core.kv_cache.memory_plan import format_bytes

    facts = checked.facts
    kinds = ", ".join(f"{share:.0%} {kind}" for kind, share in facts.kinds.items())
    context = "" if facts.context is None else f", context {facts.context:,} tokens"
    count = "" if facts.parameters is None else f"{facts.parameters / 1e9:.3g} billion parameters, "
    tokeniser = checked.tokenizer_problem or (
        "with a chat template" if checked.has_chat_template else "no chat template: completions only"
    )
    lines = [
        f"{checked.model}" + (f" at {checked.commit[:12]}" if checked.commit else ""),
        f"architecture: {facts.architecture or 'unknown'}{context}",
        f"weights: {count}{format_bytes(facts.stored_bytes)} as {facts.format}"
        + (f", {facts.quantisation}" if facts.quantisation else "")
        + (f" ({kinds})" if kinds else ""),
        f"tokeniser: {tokeniser}",
    ]
    if checked.commit:
        sizes = f"{format_bytes(checked.read_bytes)} read of {format_bytes(checked.download_bytes)}"
        lines.append(f"download: {sizes}")
    lines += ["", _devices(checked.devices, facts.context)]
    if checked.works:
        from inference_core.loading.load_core import available_memory

        lines.append(f"this machine has {format_bytes(available_memory())} available now")
    return [*lines, *_refusals(checked), *(f"note: {note}" for note in checked.notes)]


def _devices(devices: "list[DeviceSupport]", context: int | None) -> str:
    from inference_core.kv_cache.memory_plan import format_bytes

    rows = []
    for device in devices:
        if device.weight_bytes is None or device.kv_bytes_per_token is None or device.memory_bytes is None:
            rows.append([device.device, "refused", "", "", ""])
            continue
        per_token, in_all = f"{device.kv_bytes_per_token:,} bytes", format_bytes(device.memory_bytes)
        rows.append([device.device, "works", format_bytes(device.weight_bytes), per_token, in_all])
    length = "" if context is None else f" with {context:,} tokens"
    return table(["device", "", "weights", "KV per token", f"memory{length}"], rows)


def _refusals(checked: "ModelCheck") -> list[str]:
    """The reasons, each once, and what serves the model instead."""
    reasons: dict[str, list[str]] = {}
    for device in checked.devices:
        if device.refused is not None:
            reasons.setdefault(device.refused, []).append(device.device)
    if not reasons and checked.tokenizer_problem is None:
        return []
    lines = [f"{', '.join(devices)}: {reason}" for reason, devices in reasons.items()]
    named = checked.model.removeprefix("hf:")
    return [
        "",
        *lines,
        "an installed program may serve it; in the catalogue:",
        "  [[tiers]]",
        f"  {checked.engine}",
        f'  model = "{named}"',
    ]


@click.command()
@click.argument("ids", nargs=-1, metavar="[ID]...")
@click.option(
    "--form",
    type=click.Choice(["any", "folder", "gguf"]),
    default="any",
    help="Which files: a checkpoint's safetensors, a GGUF file, or the first of both that the repository has.",
)
@with_settings("catalog")
def pull(ids: tuple[str, ...], form: "Form", settings: Settings) -> None:
    """Download models by Hugging Face id, `org/name[:QUANT][@REVISION]`. Without an ID, download the catalogue's.

    Files that are here are kept, interrupted ones are continued. The commit is recorded, and later starts use the same
    files. A private or restricted model needs HF_TOKEN, a mirror HF_ENDPOINT.
    """
    from gateway.runtime.core_factory import hub_models
    from inference_core.errors import ModelFileError
    from inference_core.loaders.hub_download import download
    from inference_core.loaders.hub_model import PREFIX, parse_hub_model
    from tiers.catalog.load import load_catalog

    if ids:
        wanted = []
        for text in ids:
            model = parse_hub_model(text if text.startswith(PREFIX) else PREFIX + text)
            if model is None:
                raise ModelFileError(f"'{text}': expected a Hugging Face id, such as Qwen/Qwen3-8B-GGUF:Q4_K_M")
            wanted.append((model, form))
    else:
        wanted = hub_models(load_catalog(settings.catalog))
        if not wanted:
            click.echo("no model of the catalogue is a Hugging Face id")
    for model, kind in wanted:
        click.echo(download(model, kind, click.echo))


@click.group(invoke_without_command=True)
@click.pass_context
@setting_options(*MACHINE)
@json_option
def models(context: click.Context, /, as_json: bool, **options: Any) -> None:
    """Show tiers with models, policies and prices, the files behind them, and the memory they need.

    Warns of tiers that `aio bench tiers` found no better than cheaper ones.
    """
    if context.invoked_subcommand is None:
        _show(as_json, options)


models.add_command(check)
models.add_command(pull)


def _show(as_json: bool, options: dict[str, Any]) -> None:
    from quality.evaluation.tier_accuracy import stored_report, warnings_of
    from tiers.catalog.load import load_catalog
    from tiers.catalog.quality_gate import models_of_others

    settings = settings_from(**options)
    catalog = load_catalog(settings.catalog)
    files = [_file(model, settings.cache_path) for model in catalog.core.models]
    memory = _memory(catalog.core, files)
    groups = _groups(catalog)
    report = stored_report(settings.data_path, catalog)
    warnings = [] if report is None else warnings_of(report, catalog)
    doubtful = [model for model in models_of_others(catalog, settings.cache_path) if model.doubt is not None]
    warnings += [f"model '{model.name}': {model.doubt}" for model in doubtful]
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
        shown = [*group["memory"], *group["placement"], *group["problems"]]
        click.echo("\n" + "\n  ".join(shown))


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
    """GPU groups: their cards, the arithmetic of their memory, where their model is placed and by which rules, and what
    this machine lacks for them."""
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
        shown.append(
            {
                "name": group.name,
                "cards": numbers,
                "memory": [line.removeprefix("  ") for line in group.memory_lines()],
                "placement": placement_lines(group),
                "problems": problems,
            }
        )
    return shown


def placement_lines(group: "GpuGroupSpec") -> Sequence[str]:
    """Return which cards hold what of a group with one model and its draft, and why; of others, how fast a card's
    share of the weights has to move for a start."""
    from inference_core.errors import CoreError
    from inference_core.loaders.decoder_tensors import SHAPES
    from inference_core.parallel.mesh import Mesh
    from inference_core.placement.hardware import Device, Machines, Workload, cold_start_line
    from inference_core.placement.planner import place
    from inference_core.placement.weight_formats import PlacedDraft, weight_format

    drafts = {model.name: group.draft_of(model) for model in group.models}
    alone = [m for m in group.models if len(group.models) == 1 + (drafts[m.name] is not None)]
    if not alone or any(model.shape is None for model in group.models):
        return [cold_start_line(-(-sum(model.weight_bytes for model in group.models) // group.cards))]
    model, draft, placed_draft = alone[0], drafts[alone[0].name], None
    if draft is not None:
        placed_draft = PlacedDraft(
            name=draft.name,
            config=SHAPES[draft.shape or ""],
            form=weight_format(draft.weights),
            kv_dtype=draft.kv_dtype,
        )
    card = Device(
        name=f"card of {group.card_bytes / 1e9:g} GB",
        kind="gpu",
        memory_bytes=group.card_bytes,
        compute_capability=_ANY_CARD_CAPABILITY,
    )
    try:
        return place(
            SHAPES[model.shape or ""],
            Machines(device=card, devices_per_node=group.cards),
            Workload(
                length=min(_PLACED_CONTEXT, model.max_context),
                kv_dtype=model.kv_dtype,
                usable_share=group.memory_utilization,
            ),
            weight_format(model.weights),
            Mesh(tensor=group.tensor, pipeline=group.pipeline),
            placed_draft,
        ).lines
    except CoreError as error:
        return str(error).splitlines()


def _file(model: "ModelSpec", cache: "Path") -> dict[str, Any]:
    """Show one model's file and what it needs; `problem` says why it cannot be used."""
    from inference_core.errors import CoreError
    from inference_core.extras import optional_imports
    from inference_core.loaders.checkpoint import describe_sparsity
    from inference_core.loaders.hub_model import resolve_model_path
    from inference_core.loaders.open_checkpoint import open_checkpoint

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
    from inference_core.placement.hardware import cold_start_line

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
        *(f"{file['name']}: {cold_start_line(file['weight_bytes'])}" for file in usable),
        f"KV arena: {format_bytes(core.arena_bytes)}, tokens if one model uses all of it: {', '.join(tokens)}",
        f"sum: {format_bytes(total)}; available now: {format_bytes(available)}: "
        + ("fits" if total <= available else "DOES NOT FIT"),
    ]
