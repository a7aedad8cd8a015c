"""`aio models check`: whether a model is served here, before gigabytes are downloaded."""

from typing import TYPE_CHECKING

import click

from gateway.operations.cli.options import echo_json, json_option, table

if TYPE_CHECKING:
    from gateway.planning.model_support.model_check import DeviceSupport, ModelCheck


@click.command(name="check")
@click.argument("model", metavar="PATH|HF_ID")
@json_option
@click.pass_context
def check(context: click.Context, model: str, as_json: bool) -> None:
    """Show whether a model is served here, on which devices and with how much memory.

    Of a Hugging Face id, `org/name[:QUANT][@REVISION]`, only settings, tokeniser and the headers of the weights are
    read. Ends with 1 if no device serves it; the engine line then says what does.
    """
    from gateway.planning.model_support.model_check import check_model

    found = check_model(model)
    if as_json:
        import msgspec

        echo_json(msgspec.to_builtins(found) | {"works": found.works})
    else:
        click.echo("\n".join(_lines(found)))
    context.exit(0 if found.works else 1)


def _lines(found: "ModelCheck") -> list[str]:
    from inference_core.kv_cache.memory_plan import format_bytes

    facts = found.facts
    kinds = ", ".join(f"{share:.0%} {kind}" for kind, share in facts.kinds.items())
    context = "" if facts.context is None else f", context {facts.context:,} tokens"
    count = "" if facts.parameters is None else f"{facts.parameters / 1e9:.3g} billion parameters, "
    tokeniser = found.tokenizer_problem or (
        "with a chat template" if found.has_chat_template else "no chat template: completions only"
    )
    lines = [
        f"{found.model}" + (f" at {found.commit[:12]}" if found.commit else ""),
        f"architecture: {facts.architecture or 'unknown'}{context}",
        f"weights: {count}{format_bytes(facts.stored_bytes)} as {facts.format}"
        + (f", {facts.quantisation}" if facts.quantisation else "")
        + (f" ({kinds})" if kinds else ""),
        f"tokeniser: {tokeniser}",
    ]
    if found.commit:
        sizes = f"{format_bytes(found.read_bytes)} read of {format_bytes(found.download_bytes)}"
        lines.append(f"download: {sizes}")
    lines += ["", _devices(found.devices, facts.context)]
    if found.works:
        from inference_core.loading.load_core import available_memory

        lines.append(f"this machine has {format_bytes(available_memory())} available now")
    return [*lines, *_refusals(found), *(f"note: {note}" for note in found.notes)]


def _devices(devices: "list[DeviceSupport]", context: int | None) -> str:
    from inference_core.kv_cache.memory_plan import format_bytes

    rows = []
    for one in devices:
        if one.weight_bytes is None or one.kv_bytes_per_token is None or one.memory_bytes is None:
            rows.append([one.device, "refused", "", "", ""])
            continue
        per_token, in_all = f"{one.kv_bytes_per_token:,} bytes", format_bytes(one.memory_bytes)
        rows.append([one.device, "works", format_bytes(one.weight_bytes), per_token, in_all])
    length = "" if context is None else f" with {context:,} tokens"
    return table(["device", "", "weights", "KV per token", f"memory{length}"], rows)


def _refusals(found: "ModelCheck") -> list[str]:
    """The reasons, each once, and what serves the model instead."""
    reasons: dict[str, list[str]] = {}
    for one in found.devices:
        if one.refused is not None:
            reasons.setdefault(one.refused, []).append(one.device)
    if not reasons and found.tokenizer_problem is None:
        return []
    lines = [f"{', '.join(devices)}: {reason}" for reason, devices in reasons.items()]
    named = found.model.removeprefix("hf:")
    return [
        "",
        *lines,
        "an installed program may serve it; in the catalogue:",
        "  [[tiers]]",
        f"  {found.engine}",
        f'  model = "{named}"',
    ]
