"""Where a version comes from: the chain of its parents, and what each of them was trained on."""

import msgspec

from classifier.errors import ArtefactError
from classifier.registry.artefact import load_manifest
from classifier.registry.registry import ArtefactRegistry


class Ancestor(msgspec.Struct, frozen=True, kw_only=True):
    """One version of a line; `rows`: how many trained it. `problem`: why no more is known of it, None if all is."""

    version: str
    parent: str | None = None
    rows: int | None = None
    data_sha256: str | None = None
    seed: int | None = None
    problem: str | None = None


def lineage(registry: ArtefactRegistry, version: str) -> list[Ancestor]:
    """`version`, its parent, and so on to the first one; a parent that is gone ends the chain, and says so.

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
