"""The way of labels back into serving: each version of the classifier that serves is given the catalogue's own labels,
so that a label takes effect at once. Replicas decide alike; while the database is away, what was known last stays.
"""

import asyncio
import logging
import time
from collections.abc import Sequence

from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncEngine

from gateway.base.stores.retries import look_every
from gateway.inference.classifier_versions import ActiveClassifier, LoadedVersion
from gateway.telemetry.metrics import Metrics
from quality.learning.own_labels import OwnLabels
from tiers.catalog.catalog import CatalogInUse

log = logging.getLogger(__name__)


class ActiveLabels:
    """Follows the stored labels for the versions that serve."""

    def __init__(
        self,
        engine: AsyncEngine,
        classifier: ActiveClassifier,
        metrics: Metrics,
        catalog: CatalogInUse,
        keys_are_tenants: bool = False,
    ) -> None:
        self._engine, self._classifier, self._metrics, self._catalog = engine, classifier, metrics, catalog
        self._keys_are_tenants = keys_are_tenants
        self._labels: dict[LoadedVersion, OwnLabels] = {}
        self._turn = asyncio.Lock()
        classifier.before_serving = self.give

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
            self._labels = {version: self._labels.get(version) or self._of(version) for version in serving.versions}
            for version, labels in self._labels.items():
                version.own = await labels.catch_up(now)
            self._metrics.own_labels.set(self.counts.get(serving.current.version, 0))

    async def give(self, versions: Sequence[LoadedVersion]) -> None:
        """Give `versions` what is stored now, before they serve; while the database is away they serve without it."""
        async with self._turn:
            try:
                for version in versions:
                    labels = self._labels[version] = self._of(version)
                    version.own = await labels.catch_up(time.time())
            except (SQLAlchemyError, OSError) as error:
                log.warning("own labels cannot be read: %s", error)

    def _of(self, version: LoadedVersion) -> OwnLabels:
        return OwnLabels(self._engine, version.model, version.table, self._tiers, version.head, self._keys_are_tenants)

    @property
    def counts(self) -> dict[str, int]:
        """By version, how many labels count in its decisions."""
        return {version.version: 0 if version.own is None else version.own.labels for version in self._labels}
