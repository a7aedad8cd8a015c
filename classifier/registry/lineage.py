"""The lineage of a version: the chain of its parents, and the training data of each."""

import msgspec

from classifier.errors import ArtefactError
from classifier.registry.artefact import load_manifest
from classifier.registry.registry import ArtefactRegistry


class Ancestor(msgspec.Struct, frozen=True, kw_only=True):
    """One version of a lineage; `rows`: the number of training rows. `problem`: why no more is known, or None."""

    version: str
    parent: str | None = None
    rows: int | None = None
    data_sha256: str | None = None
    seed: int | None = None
    problem: str | None = None


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
