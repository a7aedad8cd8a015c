"""The catalogue: which models there are and what the four tiers make of them, as typed data read from TOML."""

import hashlib
import tomllib
from importlib import resources
from pathlib import Path

import msgspec

from inference_core.model_spec import CoreSpec
from tiers.catalog_rules import check_rules, require_servable, validate_files
from tiers.errors import CatalogError
from tiers.gpu_group import GpuGroupSpec
from tiers.tier_spec import Count, TierSpec
from tiers.toml_entry import convert_entry

__all__ = ["Catalog", "load_catalog", "parse_catalog", "require_servable", "shipped_catalogs", "validate_files"]


class Catalog(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Models and tiers of one installation; `tiers[k-1]` is tier k.

    `core` is what this machine's CPU serves; `gpu_groups` are device groups described for planning.
    `reference_prompt_tokens` is the mean prompt length that the prices were derived for.
    """

    name: str
    description: str = ""
    reference_prompt_tokens: Count = 200
    core: CoreSpec = msgspec.field(default_factory=lambda: CoreSpec(models=[]))
    gpu_groups: list[GpuGroupSpec] = []
    tiers: list[TierSpec]

    def tier(self, number: int) -> TierSpec:
        """The spec of tier `number` (1 to 4)."""
        return self.tiers[number - 1]

    @property
    def fingerprint(self) -> str:
        """Hash of all that decides which answers the tiers give (not of prices): labels are valid for one of these."""
        models = {m.name: [m.path, m.compute] for m in self.core.models}
        models |= {m.name: [m.path, m.weights] for group in self.gpu_groups for m in group.models}
        answers = [
            [t.number, models.get(t.model_name), t.remote and [t.remote.base_url, t.remote.model], t.policy]
            for t in self.tiers
        ]
        return hashlib.sha256(msgspec.json.encode(answers)).hexdigest()[:16]


def load_catalog(name_or_path: str) -> Catalog:
    """Read and check a catalogue: `laptop`, `datacenter`, or the path of a TOML file.

    Raises CatalogError with every problem found, not only the first.
    """
    text, origin = _read(name_or_path)
    try:
        table = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise CatalogError(f"{origin} is not valid TOML: {error}") from error
    return parse_catalog(table, origin)


def parse_catalog(table: dict[str, object], origin: str) -> Catalog:
    """Convert and check a decoded TOML document; `origin` names it in error messages. Raises CatalogError."""
    problems: list[str] = []
    catalog = convert_entry(Catalog, table, "", problems)
    if catalog is not None:
        problems += check_rules(catalog)
    if problems or catalog is None:
        lines = "\n".join(f"  - {problem}" for problem in problems)
        raise CatalogError(f"{origin} has {len(problems)} problem(s):\n{lines}")
    return catalog


def shipped_catalogs() -> list[str]:
    """Names that `load_catalog` understands without a path."""
    folder = resources.files("tiers.catalogs")
    return sorted(f.name.removesuffix(".toml") for f in folder.iterdir() if f.name.endswith(".toml"))


def _read(name_or_path: str) -> tuple[str, str]:
    if name_or_path in shipped_catalogs():
        text = resources.files("tiers.catalogs").joinpath(f"{name_or_path}.toml").read_text(encoding="utf-8")
        return text, f"catalogue '{name_or_path}'"
    path = Path(name_or_path).expanduser()
    try:
        return path.read_text(encoding="utf-8"), f"catalogue {path}"
    except (OSError, UnicodeDecodeError) as error:
        known = ", ".join(shipped_catalogs())
        raise CatalogError(
            f"catalogue '{name_or_path}' cannot be read ({error}); give one of {known}, or the path of a TOML file"
        ) from error
