"""`aio models pull`: download models by their Hugging Face ids, before or instead of a start of the server."""

from typing import TYPE_CHECKING, Any

import click

from gateway.operations.cli.options import catalog_option, settings_from

if TYPE_CHECKING:
    from inference_core.loaders.hub_retry import Form


@click.command()
@click.argument("ids", nargs=-1, metavar="[ID]...")
@click.option(
    "--form",
    type=click.Choice(["any", "folder", "gguf"]),
    default="any",
    show_default=True,
    help="Which files: a checkpoint's safetensors, a GGUF file, or the first of both that the repository has.",
)
@catalog_option
def pull(ids: tuple[str, ...], form: "Form", **options: Any) -> None:
    """Download models by Hugging Face id, `org/name[:QUANT][@REVISION]`; without an ID all of the catalogue.

    Files that are here are kept, interrupted ones are continued. The commit is recorded, and later starts use the same
    files. A private or restricted model needs HF_TOKEN, a mirror HF_ENDPOINT.
    """
    from gateway.runtime.hub_models import hub_models
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
        wanted = hub_models(load_catalog(settings_from(**options).catalog))
        if not wanted:
            click.echo("no model of the catalogue is a Hugging Face id")
    for model, kind in wanted:
        click.echo(download(model, kind, click.echo))
