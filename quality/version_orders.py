"""What an operator orders about classifier versions: promote one by hand, put one on trial, end the trial."""

import time
from typing import Any

from sqlalchemy.ext.asyncio import AsyncEngine

from classifier.artefact import load_manifest
from classifier.registry import ArtefactRegistry
from quality.classifier_versions import ClassifierVersions
from quality.store import record_audit


async def promote(engine: AsyncEngine, registry: ArtefactRegistry, version: str, *, actor: str, reason: str) -> str:
    """Make `version` current, by hand; returns the version it replaced. Raises `ArtefactError` for an unknown one."""
    before = registry.current().name
    folder = registry.promote(version)
    await ClassifierVersions(engine).ensure(load_manifest(folder), folder, time.time())
    await _audit(engine, actor, "classifier.promoted", version, reason, {"retired": before, "by": "hand"})
    return before


async def start_canary(
    engine: AsyncEngine, registry: ArtefactRegistry, version: str, share: float, *, actor: str, reason: str
) -> None:
    """Let `version` decide about a `share` of the requests. Raises `ArtefactError` if that cannot be."""
    registry.start_canary(version, share)
    await _audit(engine, actor, "classifier.canary_started", version, reason, {"share": share})


async def stop_canary(engine: AsyncEngine, registry: ArtefactRegistry, *, actor: str, reason: str) -> str | None:
    """End the trial; returns the version that was on it, None if none was."""
    version = registry.stop_canary()
    if version is not None:
        await _audit(engine, actor, "classifier.canary_stopped", version, reason, {})
    return version


async def _audit(
    engine: AsyncEngine, actor: str, action: str, subject: str, reason: str, details: dict[str, Any]
) -> None:
    await record_audit(
        engine, at=time.time(), actor=actor, action=action, subject=subject, reason=reason, details=details
    )
