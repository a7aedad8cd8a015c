"""`aio kv-calc`: the arithmetic of a KV cache, of the weights and of model placement, line by line."""

from pathlib import Path
from typing import Any

import click

from gateway.operations.cli.options import echo_answer, json_option


@click.command("kv-calc")
@click.option("--model", metavar="PATH", help="Take the shape from a GGUF file or a Hugging Face folder.")
@click.option("--shape", metavar="NAME", help="Take the shape of a known model, such as llama-3.3-70b.")
@click.option("--catalog", metavar="NAME|FILE", help="Explain every model of a catalogue.")
@click.option("--layers", type=click.IntRange(min=1), help="Decoder layers.")
@click.option("--heads", type=click.IntRange(min=1), help="Query heads.")
@click.option("--kv-heads", type=click.IntRange(min=1), help="KV heads.  [as many as query heads]")
@click.option("--head-dim", type=click.IntRange(min=1), default=128, show_default=True)
@click.option("--length", type=click.IntRange(min=1), default=8192, show_default=True, help="Tokens per sequence.")
@click.option("--batch", type=click.IntRange(min=1), default=1, show_default=True, help="Number of sequences.")
@click.option(
    "--dtype",
    type=click.Choice(["float32", "float16", "bfloat16", "fp8", "int8"]),
    default="float16",
    show_default=True,
)
@click.option("--weights-gb", type=click.FloatRange(min=0), help="Size of the weights in GB (10^9 bytes).")
@click.option("--device-gb", type=click.FloatRange(min=0), help="Memory of one device in GB.")
@click.option("--devices", type=click.IntRange(min=1), help="Number of devices of the machine.  [1]")
@click.option("--usable-share", type=click.FloatRange(0, 1, min_open=True), default=0.9, show_default=True)
@click.option("--device", "device_name", metavar="NAME", help="Plan a placement on these devices: l4, h100, ...")
@click.option("--hardware", metavar="FILE", type=click.Path(path_type=Path), help="Custom hardware catalogue.")
@click.option("--weights", metavar="FORMAT", help="bfloat16, fp8, awq-int4, q4_k, ...  [the device's best]")
@click.option("--nodes", type=click.IntRange(min=1), default=1, show_default=True, help="Number of machines.")
@click.option("--island", type=click.IntRange(min=1), help="Devices joined by the fast link.  [all of a machine]")
@click.option("--tensor", type=click.IntRange(min=1), help="Tensor parallel size.  [as few as suffice]")
@click.option("--pipeline", type=click.IntRange(min=1), help="Pipeline stages.  [as few as suffice]")
@click.option("--max-watts", type=click.FloatRange(min=0, min_open=True), help="Power limit of a device.")
@click.option("--host-gb", type=click.FloatRange(min=0), default=0.0, help="Host memory in GB.")
@click.option("--uneven", is_flag=True, help="Allow heads and layers that the devices do not divide.")
@json_option
def kv_calc(model: str | None, shape: str | None, catalog: str | None, as_json: bool, **options: Any) -> None:
    """Calculate the bytes of a KV cache from a model's shape, and whether it fits with the weights.

    With --device, plan the placement: which devices share layers, which hold stages, how many copies
    there is room for, what each rank holds, how many sequences fit, and which rule decided each of it.

    \b
    aio kv-calc --layers 80 --heads 64 --kv-heads 8 --batch 32 --weights-gb 40 --device-gb 24 --devices 4
    aio kv-calc --shape llama-3.3-70b --weights awq-int4 --device l4 --devices 4
    aio kv-calc --catalog datacenter
    """
    from gateway.planning.commands import placements

    sources = [name for name, value in (("--model", model), ("--shape", shape), ("--catalog", catalog)) if value]
    if len(sources) > 1:
        raise click.UsageError(f"{' and '.join(sources)} name different models; give one of them")
    if catalog is not None:
        found = placements.explain_catalog(catalog, options)
        echo_answer(as_json, found, "\n\n".join("\n".join([entry.title, *entry.lines]) for entry in found))
        return
    config = placements.read_shape(model, shape)
    if options["device_name"] is not None:
        if config is None:
            raise click.UsageError("to place a model, give its whole shape by --model PATH or --shape NAME")
        placement = placements.place_model(config, options)
        echo_answer(as_json, placement, "\n".join(placement.lines))
        return
    kv, plan = placements.plan_cache(config, options)
    echo_answer(
        as_json,
        {"demand": kv, "bytes_per_token": kv.bytes_per_token, "total_bytes": kv.total_bytes, "plan": plan},
        "\n".join([*kv.explain(), *(plan.lines if plan else ())]),
    )
