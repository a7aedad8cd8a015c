"""Versions of the artefact, and one pointer file that names the serving one (RT-14)."""

import json
import os
import shutil
import threading
import time
from pathlib import Path
from typing import Any

import msgspec

from classifier.errors import ArtefactError
from classifier.policy.experiment_split import Split
from inference_core.io.files import prepare_types

POINTER = "current.json"


class Canary(msgspec.Struct, frozen=True, kw_only=True):
    """A version on trial: it decides on a `share` of the requests, in (0, 1); the current version on the rest."""

    version: str
    share: float


prepare_types(Canary, Split)


class ArtefactRegistry:
    """A folder with one folder per version, and `current.json`: {"current": version, "previous": version or null,
    "canary": {"version": …, "share": …} or null, "experiment": a `classifier.policy.experiment_split.Split` or null}.

    The pointer is replaced atomically; readers see the old state or the new one. One writer at a time
    (`quality.rollout.versions`). A promotion or a rollback ends a canary, which was compared with the
    version served before. An experiment continues.
    """

    def __init__(self, root: Path) -> None:
        self.root = root

    def current(self) -> Path:
        """The folder of the serving version. Raises `ArtefactError` if none was promoted or it is missing."""
        version = self._pointer().get("current")
        if version is None:
            raise ArtefactError(
                f"{self.root / POINTER} names no current version: the shipped one serves until one is promoted."
            )
        return self.folder(version)

    def current_or(self, shipped: Path) -> Path:
        """Like `current`, or `shipped` while none was promoted."""
        return shipped if self._pointer().get("current") is None else self.current()

    def previous(self) -> str | None:
        """The version that `rollback` would restore."""
        version: str | None = self._pointer().get("previous")
        return version

    def canary(self) -> Canary | None:
        """The version on trial, if there is one. Raises `ArtefactError` for an invalid pointer."""
        stored = self._pointer().get("canary")
        if stored is None:
            return None
        try:
            canary = msgspec.convert(stored, Canary)
        except msgspec.ValidationError as error:
            raise ArtefactError(f"{self.root / POINTER}: canary: {error}.") from error
        _check_share(canary.share)
        return canary

    def versions(self) -> list[str]:
        """Return all complete versions, by name."""
        return sorted(path.parent.name for path in self.root.glob("[!.]*/manifest.json"))

    def folder(self, version: str) -> Path:
        """Return the folder of `version`. Raises `ArtefactError` if there is no such version."""
        folder = self.root / version
        # Unlike `Path.is_file`, this is False for a name that is too long for a file system.
        is_known = Path(version).name == version and os.path.isfile(folder / "manifest.json")
        if version.startswith(".") or not is_known:
            listed = (
                ", ".join(self.versions()) or "none yet: a retraining makes them, and the shipped one serves until then"
            )
            raise ArtefactError(f"no artefact version {version!r:.80} under {self.root}; there are {listed}.")
        return folder

    def promote(self, version: str) -> Path:
        """Make `version` current and store the previous one; promoting the current version only ends a canary."""
        folder = self.folder(version)
        pointer = self._pointer()
        before = pointer.get("current")
        if before != version:
            self._write({**pointer, "current": version, "previous": before, "canary": None})
        elif pointer.get("canary") is not None:
            self._write({**pointer, "canary": None})
        return folder

    def start_canary(self, version: str, share: float) -> Path:
        """Put `version` on trial for a `share` of the requests. Raises `ArtefactError` if it is the current one."""
        folder = self.check_canary(version, share)
        self._write({**self._pointer(), "canary": {"version": version, "share": share}})
        return folder

    def check_canary(self, version: str, share: float) -> Path:
        """Return the folder of `version`. Raises `ArtefactError` if it cannot be put on trial."""
        _check_share(share)
        folder, pointer = self.folder(version), self._pointer()
        if pointer.get("current") is None:
            raise ArtefactError(
                f"{self.root / POINTER} names no current version; promote one before a trial of {version}."
            )
        if pointer["current"] == version:
            raise ArtefactError(f"{version} serves already; a canary must be another version.")
        return folder

    def stop_canary(self) -> str | None:
        """End the trial and return its version."""
        pointer = self._pointer()
        canary = pointer.get("canary")
        if canary is None:
            return None
        self._write({**pointer, "canary": None})
        return str(canary.get("version"))

    def experiment(self) -> Split | None:
        """The traffic split, or None. Raises `ArtefactError` for an invalid pointer."""
        stored = self._pointer().get("experiment")
        try:
            return None if stored is None else msgspec.convert(stored, Split)
        except msgspec.ValidationError as error:
            raise ArtefactError(f"{self.root / POINTER}: experiment: {error}.") from error

    def set_experiment(self, split: Split | None) -> None:
        """Set or remove the traffic split. Raises `ArtefactError` for an arm whose version is missing."""
        for arm in () if split is None else (split.a, split.b):
            if arm.version is not None:
                self.folder(arm.version)
        if split != self.experiment():
            self._write({**self._pointer(), "experiment": None if split is None else msgspec.to_builtins(split)})

    def seed(self, shipped: Path) -> Path:
        """Add the version in `shipped` to an empty registry as its first; return the current version's folder.

        Without it the first promotion would have no version to roll back to.
        """
        # An earlier experiment may have written the pointer.
        if self._pointer().get("current") is not None:
            return self.current()
        self.add(shipped)
        return self.promote(shipped.name)

    def add(self, artefact: Path) -> Path:
        """Copy the version in the folder `artefact` here, atomically, unless it exists."""
        target = self.root / artefact.name
        if not target.is_dir():
            incoming = self.root / f".seed-{artefact.name}-{time.time_ns()}"
            shutil.copytree(artefact, incoming)
            try:
                incoming.rename(target)
            except OSError:
                # Another process was first; versions with one name have the same content.
                shutil.rmtree(incoming)
        return target

    def rollback(self) -> Path:
        """Make the previous version current again, and the current one previous. Raises `ArtefactError` without one."""
        pointer = self._pointer()
        previous = pointer.get("previous")
        if previous is None:
            raise ArtefactError(f"{self.root / POINTER} names no previous version to roll back to.")
        folder = self.folder(previous)
        self._write({**pointer, "current": previous, "previous": pointer.get("current"), "canary": None})
        return folder

    def _pointer(self) -> dict[str, Any]:
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

    def _write(self, pointer: dict[str, Any]) -> None:
        self.root.mkdir(parents=True, exist_ok=True)
        # Two threads may write at once: a seed by the loop, a promotion by an administrator.
        temporary = self.root / f".{POINTER}.{os.getpid()}-{threading.get_ident()}"
        with temporary.open("w") as file:
            json.dump(pointer, file, indent=1)
            file.write("\n")
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(self.root / POINTER)


def _check_share(share: float) -> None:
    if not 0.0 < share < 1.0:
        raise ArtefactError(f"a canary's share is {share}; it must lie between 0 and 1. Promote the version instead.")
