"""A registry's versions for operators: status, origin, size, problems, and the lineage of each.

The lineage of a version is the chain of its parents, and the training data of each.
"""

from pathlib import Path

import msgspec

from classifier.errors import ArtefactError
from classifier.registry.artefact import default_artefact, load_manifest
from classifier.registry.registry import POINTER, ArtefactRegistry


class Ancestor(msgspec.Struct, frozen=True, kw_only=True):
    """One version of a lineage."""

    version: str
    parent: str | None = None
    rows: int | None = None
    """The number of training rows."""
    data_sha256: str | None = None
    seed: int | None = None
    problem: str | None = None
    """Why no more is known, or None."""


def lineage(registry: ArtefactRegistry, version: str) -> list[Ancestor]:
    """Return `version`, its parent, and so on to the root; a missing parent ends the chain with a problem.

    Raises `ArtefactError` if there is no such `version`.
    """
    registry.folder(version)
    line: list[Ancestor] = []
    seen: set[str] = set()
    wanted: str | None = version
    while wanted is not None:
        if wanted in seen:
            line.append(Ancestor(version=wanted, problem="it is its own ancestor; a manifest was changed by hand"))
            break
        seen.add(wanted)
        try:
            manifest = load_manifest(registry.folder(wanted))
        except ArtefactError as error:
            line.append(Ancestor(version=wanted, problem=str(error)))
            break
        line.append(
            Ancestor(
                version=manifest.version,
                parent=manifest.parent,
                rows=manifest.counts.get("train"),
                data_sha256=manifest.data_sha256,
                seed=manifest.seed,
            )
        )
        wanted = manifest.parent
    return line


class ListedVersion(msgspec.Struct, frozen=True, kw_only=True):
    """A version of the classifier, as lists show it."""

    version: str
    status: str
    """current, previous, "canary 10.0%", shipped (with the program, not in the registry) or ""."""
    parent: str | None = None
    encoder: str = "?"
    rows: int = 0
    """Number of training rows."""
    megabytes: float = 0.0
    line: list[str] = []
    """The version and its ancestors."""
    problem: str = ""
    """Why it cannot be read; "" if it can."""


def listed_versions(root: Path) -> list[ListedVersion]:
    """Return every version in the registry `root`, by name, and the shipped one. Raises `ArtefactError`."""
    registry, shipped = ArtefactRegistry(root), default_artefact()
    status: dict[str, str] = {}
    if (canary := registry.canary()) is not None:
        status[canary.version] = f"canary {canary.share:.1%}"
    if (previous := registry.previous()) is not None:
        status[previous] = "previous"
    promoted = (root / POINTER).is_file()
    status[registry.current().name if promoted else shipped.name] = "current"
    listed = [_listed(registry, root / version, status.get(version, "")) for version in registry.versions()]
    if shipped.name not in registry.versions():
        listed.append(_listed(ArtefactRegistry(shipped.parent), shipped, status.get(shipped.name, "shipped")))
    return listed


def _listed(registry: ArtefactRegistry, folder: Path, status: str) -> ListedVersion:
    try:
        manifest = load_manifest(folder)
    except ArtefactError as error:
        return ListedVersion(version=folder.name, status=status, problem=str(error))
    return ListedVersion(
        version=manifest.version,
        status=status,
        parent=manifest.parent,
        encoder=str(manifest.encoder.get("name", "?")),
        rows=manifest.counts.get("train", 0),
        megabytes=round(sum(file.stat().st_size for file in folder.iterdir()) / 1e6, 2),
        line=[ancestor.version for ancestor in lineage(registry, folder.name)],
    )
