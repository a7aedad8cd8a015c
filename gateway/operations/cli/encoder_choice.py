"""Which slow encoder a command uses: a checkpoint on disk, or the hidden states of a model."""

from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from classifier.training.recipes.train import ReadLayer
    from gateway.base.settings import Settings


def encoder_choice(name: str, settings: "Settings") -> "Path | ReadLayer":
    """`PATH`, or `hidden[:MODEL[:LAYER]]`, by default of the catalogue's smallest model. Raises `BadParameter`."""
    if name.partition(":")[0] != "hidden":
        if not Path(name).is_dir():
            raise click.BadParameter(f"{name!r} is not a folder; give one, or hidden[:MODEL[:LAYER]]")
        return Path(name)
    from classifier.training.recipes.train import parse_read_layer
    from gateway.runtime.cores.hidden_states import smallest_model
    from tiers.catalog.load import load_catalog

    try:
        return parse_read_layer(name, lambda: smallest_model(load_catalog(settings.catalog)))
    except ValueError as error:
        raise click.BadParameter(str(error)) from error
