"""Read a catalogue from TOML, shipped or the operator's, and report all its problems at once."""

import tomllib
from importlib import resources
from pathlib import Path

from inference_core.io.files import read_text_file
from tiers.catalog.bound_adapters import with_bound_adapters
from tiers.catalog.catalog import Catalog
from tiers.catalog.defaults import completed, expanded
from tiers.catalog.planned_numbers import with_planned_numbers
from tiers.catalog.toml_entry import convert_entry
from tiers.catalog.validate import check_rules
from tiers.errors import CatalogError


def load_catalog(name_or_path: str) -> Catalog:
    """Read and check a catalogue: one that ships, by its name, or the path of a TOML file.

    Raises CatalogError with every problem found, not only the first.
    """
    text, origin = _read(name_or_path)
    try:
        table = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise CatalogError(f"{origin} is not valid TOML: {error}") from error
    return parse_catalog({"name": Path(name_or_path).stem} | table, origin)


def parse_catalog(table: dict[str, object], origin: str) -> Catalog:
    """Convert and check a decoded TOML document; `origin` names it in error messages. Raises CatalogError."""
    if "tiers" not in table:
        raise CatalogError(
            f"{origin} has no tiers: write two or more [[tiers]], each with name and url, or run `aio init`"
        )
    problems: list[str] = []
    catalog = convert_entry(Catalog, with_planned_numbers(expanded(table), problems), "", problems)
    if catalog is not None:
        catalog = with_bound_adapters(completed(catalog))
        problems += check_rules(catalog)
    if problems or catalog is None:
        lines = "\n".join(f"  - {problem}" for problem in problems)
        raise CatalogError(f"{origin} has {len(problems)} problem(s):\n{lines}")
    return catalog


def shipped_catalogs() -> list[str]:
    """Return the names that `load_catalog` accepts without a path."""
    folder = resources.files("tiers.catalogs")
    return sorted(f.name.removesuffix(".toml") for f in folder.iterdir() if f.name.endswith(".toml"))


def _read(name_or_path: str) -> tuple[str, str]:
    if name_or_path in shipped_catalogs():
        text = resources.files("tiers.catalogs").joinpath(f"{name_or_path}.toml").read_text(encoding="utf-8")
        return text, f"catalogue '{name_or_path}'"
    path = Path(name_or_path).expanduser()
    try:
        return read_text_file(path), f"catalogue {path}"
    except OSError as error:
        known = ", ".join(shipped_catalogs())
        raise CatalogError(
            f"catalogue '{name_or_path}' cannot be read ({error}); give one of {known}, or the path of a TOML file"
        ) from error
