"""Versions of the artefact side by side, and one pointer file that says which of them serves (RT-14)."""

import json
import os
import shutil
import time
from pathlib import Path

from classifier.errors import ArtefactError

POINTER = "current.json"


class ArtefactRegistry:
    """A folder with one folder per version, and `current.json`: {"current": version, "previous": version or null}.

    The pointer is swapped atomically; readers see the old version or the new one. One writer at a time (the quality
    job holds a lease).
    """

    def __init__(self, root: Path) -> None:
        self.root = root

    def current(self) -> Path:
        """Folder of the serving version. Raises `ArtefactError` if none was promoted or it is gone."""
        version = self._pointer().get("current")
        if version is None:
            raise ArtefactError(f"{self.root / POINTER} names no current version; promote one.")
        return self.folder(version)

    def previous(self) -> str | None:
        """The version that `rollback` would restore."""
        return self._pointer().get("previous")

    def versions(self) -> list[str]:
        """All complete versions, by name."""
        return sorted(path.parent.name for path in self.root.glob("[!.]*/manifest.json"))

    def folder(self, version: str) -> Path:
        """Folder of `version`. Raises `ArtefactError` if there is no such version."""
        folder = self.root / version
        if version.startswith(".") or Path(version).name != version or not (folder / "manifest.json").is_file():
            raise ArtefactError(f"no artefact version {version!r} under {self.root}; there are {self.versions()}.")
        return folder

    def promote(self, version: str) -> Path:
        """Make `version` current and remember the one before it; promoting the current version changes nothing."""
        folder = self.folder(version)
        before = self._pointer().get("current")
        if before != version:
            self._write({"current": version, "previous": before})
        return folder

    def seed(self, shipped: Path) -> Path:
        """Give an empty registry the version in `shipped` as its first; returns the current one's folder.

        Without it the first promotion would have nothing to roll back to.
        """
        if (self.root / POINTER).is_file():
            return self.current()
        target = self.root / shipped.name
        if not target.is_dir():
            incoming = self.root / f".seed-{shipped.name}-{time.time_ns()}"
            shutil.copytree(shipped, incoming)
            try:
                incoming.rename(target)
            except OSError:
                # Another process was first; versions never differ in content.
                shutil.rmtree(incoming)
        return self.promote(shipped.name)

    def rollback(self) -> Path:
        """Make the previous version current again (and the other way round). Raises `ArtefactError` without one."""
        pointer = self._pointer()
        previous = pointer.get("previous")
        if previous is None:
            raise ArtefactError(f"{self.root / POINTER} names no previous version to roll back to.")
        folder = self.folder(previous)
        self._write({"current": previous, "previous": pointer.get("current")})
        return folder

    def _pointer(self) -> dict[str, str | None]:
        path = self.root / POINTER
        try:
            pointer = json.loads(path.read_bytes())
        except FileNotFoundError:
            return {}
        except (OSError, ValueError) as error:
            raise ArtefactError(f"{path} cannot be read: {error}.") from error
        if not isinstance(pointer, dict):
            raise ArtefactError(f"{path} holds {type(pointer).__name__}; it must be an object.")
        return pointer

    def _write(self, pointer: dict[str, str | None]) -> None:
        self.root.mkdir(parents=True, exist_ok=True)
        temporary = self.root / f".{POINTER}.{os.getpid()}"
        with temporary.open("w") as file:
            json.dump(pointer, file, indent=1)
            file.write("\n")
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(self.root / POINTER)
