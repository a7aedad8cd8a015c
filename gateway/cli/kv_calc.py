"""`aio kv-calc`: the arithmetic of a KV cache, and of weights beside it on given devices."""

import click

from gateway.cli.options import echo_json, json_option


@click.command("kv-calc")
@click.option("--model", metavar="PATH", help="Take the shape from a GGUF file or a Hugging Face folder.")
@click.option("--layers", type=click.IntRange(min=1), help="Decoder layers.")
@click.option("--heads", type=click.IntRange(min=1), help="Query heads.")
@click.option("--kv-heads", type=click.IntRange(min=1), help="KV heads.  [as many as query heads]")
@click.option("--head-dim", type=click.IntRange(min=1), default=128, show_default=True)
@click.option("--length", type=click.IntRange(min=1), default=8192, show_default=True, help="Tokens per sequence.")
@click.option("--batch", type=click.IntRange(min=1), default=1, show_default=True, help="Sequences.")
@click.option(
    "--dtype",
    type=click.Choice(["float32", "float16", "bfloat16", "fp8", "int8"]),
    default="float16",
    show_default=True,
)
@click.option("--weights-gb", type=click.FloatRange(min=0), help="Weights in GB (10^9 bytes), to plan devices.")
@click.option("--device-gb", type=click.FloatRange(min=0), help="Memory of one device in GB.")
@click.option("--devices", type=click.IntRange(min=1), default=1, show_default=True, help="Devices that share it.")
@click.option("--usable-share", type=click.FloatRange(0, 1, min_open=True), default=0.9, show_default=True)
@json_option
def kv_calc(
    model: str | None,
    layers: int | None,
    heads: int | None,
    kv_heads: int | None,
    head_dim: int,
    length: int,
    batch: int,
    dtype: str,
    weights_gb: float | None,
    device_gb: float | None,
    devices: int,
    usable_share: float,
    as_json: bool,
) -> None:
    """Work out the bytes of a KV cache from a model's shape, and with --weights-gb and --device-gb whether it fits.

    Example: aio kv-calc --layers 80 --heads 64 --kv-heads 8 --batch 32 --weights-gb 40 --device-gb 24 --devices 4
    """
    from inference_core.memory_plan import Devices, KVDemand, plan_memory

    if model is not None:
        from inference_core.loaders.model_path import resolve_model_path
        from inference_core.loaders.opening import open_checkpoint

        config = open_checkpoint(resolve_model_path(model)).config
        kv = KVDemand.of_model(config, length=length, batch=batch, dtype=dtype)  # type: ignore[arg-type]
    elif layers is None or heads is None:
        raise click.UsageError("give --model PATH, or --layers and --heads")
    else:
        kv = KVDemand(
            num_layers=layers,
            num_heads=heads,
            num_kv_heads=kv_heads or heads,
            head_dim=head_dim,
            length=length,
            batch=batch,
            dtype=dtype,  # type: ignore[arg-type]
        )
    plan = None
    if device_gb is not None:
        cards = Devices(bytes_each=int(device_gb * 1e9), count=devices, usable_share=usable_share)
        plan = plan_memory(devices=cards, weight_bytes=int((weights_gb or 0) * 1e9), kv=kv)
    if as_json:
        echo_json({"demand": kv, "bytes_per_token": kv.bytes_per_token, "total_bytes": kv.total_bytes, "plan": plan})
        return
    click.echo("\n".join([*kv.explain(), *(plan.lines if plan else ())]))
