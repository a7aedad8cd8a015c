"""The models of a catalogue that are Hugging Face ids."""

from collections.abc import Collection

import click

from inference_core.loaders.hub_download import download
from inference_core.loaders.hub_model import Form, HubModel, downloaded, hub_model_of_path, parse_hub_model
from tiers.catalog.catalog import CPU_CORE, Catalog
from tiers.engines import PROGRAMS


def hub_models(catalog: Catalog) -> list[tuple[HubModel, Form]]:
    """Return every id with the files that its user loads: of the cores, and of the engines that AIO starts."""
    return core_hub_models(catalog, catalog.core_names) + engine_hub_models(catalog)


def core_hub_models(catalog: Catalog, cores: Collection[str]) -> list[tuple[HubModel, Form]]:
    """Return the ids of the models of `cores`."""
    paths = [model.path for model in catalog.core.models] if CPU_CORE in cores else []
    paths += [model.path for group in catalog.served_groups if group.name in cores for model in group.models]
    return [(model, "any") for model in map(hub_model_of_path, paths) if model is not None]


def engine_hub_models(catalog: Catalog) -> list[tuple[HubModel, Form]]:
    """Return the ids of the engines' models, those excepted that an engine fetches itself."""
    found: list[tuple[HubModel, Form]] = []
    for spec in catalog.engines.values():
        form, model = PROGRAMS[spec.kind].form, parse_hub_model(spec.model)
        if form != "name" and model is not None:
            found.append((model.at(spec.revision) if spec.revision else model, form))
    return found


def fetch_core_models(catalog: Catalog, cores: Collection[str]) -> None:
    """Download the models of `cores` that are not here, with progress bars on a terminal. Raises `ModelFileError`.

    Call it before a server handles signals: Ctrl-C and SIGTERM then end a long download at once. Raises
    `DevicesMissingError` rather than download what this machine has no cards for.
    """
    groups = [
        group.name
        for group in catalog.served_groups
        if group.name in cores and any(downloaded(model) is None for model, _ in core_hub_models(catalog, [group.name]))
    ]
    if groups:
        # Imported here: it loads torch, and most starts download nothing.
        from gateway.runtime.required_cards import require_cards

        require_cards(catalog, groups)
    for model, form in core_hub_models(catalog, cores):
        download(model, form, click.echo)
