"""Gives each version that serves the catalogue's own labels, so that a label takes effect at once."""

import asyncio
import logging
import time
from collections.abc import Sequence

from sqlalchemy.ext.asyncio import AsyncEngine

from gateway.base.stores.retries import look_every
from gateway.inference.classifier_versions import ActiveClassifier, LoadedVersion
from gateway.telemetry.metrics import Metrics
from quality.learning.own_labels import OwnLabels
from tiers.catalog.catalog import CatalogInUse

log = logging.getLogger(__name__)


class ActiveLabels:
    """Follows the stored labels for the versions that serve.

    They come from the database, so that replicas decide alike; while it is away, what was known last stays.
    """

    def __init__(
        self,
        engine: AsyncEngine,
        classifier: ActiveClassifier,
        metrics: Metrics,
        catalog: CatalogInUse,
    ) -> None:
        self._engine, self._classifier, self._metrics, self._catalog = engine, classifier, metrics, catalog
        self._labels: dict[LoadedVersion, OwnLabels] = {}
        self._turn = asyncio.Lock()

    def _tiers(self) -> Sequence[str]:
        return self._catalog.current.tier_fingerprints

    async def follow(self, seconds: float) -> None:
        """Take in what is new every `seconds`, at first at once."""
        await look_every(seconds, lambda: self.catch_up(time.time()), "own labels", log)

    async def catch_up(self, now: float) -> None:
        """Take in what is stored at `now`, in epoch seconds."""
        async with self._turn:
            serving = self._classifier.serving_or_none
            if serving is None:
                return
            self._labels = {
                version: self._labels.get(version)
                or OwnLabels(self._engine, version.model, version.table, self._tiers, version.head)
                for version in serving.versions
            }
            for version, labels in self._labels.items():
                version.own = await labels.catch_up(now)
            self._metrics.own_labels.set(self.counts.get(serving.current.version, 0))

    @property
    def counts(self) -> dict[str, int]:
        """By version, how many labels count in its decisions."""
        return {version.version: 0 if version.own is None else version.own.labels for version in self._labels}
