"""Retraining as a task on a real Ray cluster: the same candidate as on this machine."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy.ext.asyncio import AsyncEngine

from classifier.registry.artefact import load_artefact
from quality.retraining.retrain import retrain
from quality.retraining.training_process import ORDER, TrainingProcessError
from tests.quality.retraining.tiny_classifier import SETTINGS, base_artefact, fresh_registry, model_in, store_experience

pytestmark = [pytest.mark.ray, pytest.mark.timeout(600)]
pytest.importorskip("ray", reason="the extra `ray` is not installed")


@pytest.fixture(scope="module", autouse=True)
def cluster() -> Iterator[None]:
    from gateway.runtime.cluster.join import LocalCluster, join

    with LocalCluster(2) as local:
        join(local.address)
        yield


async def test_a_candidate_trained_on_a_cluster_is_the_one_trained_here(
    engine: AsyncEngine, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    from gateway.runtime.cluster.training import train_on_cluster

    shipped = base_artefact(tmp_path_factory.mktemp("shipped"))
    registry, elsewhere = fresh_registry(tmp_path / "here", shipped), fresh_registry(tmp_path / "there", shipped)
    await store_experience(engine, model_in(registry), 1500)

    there = await retrain(engine, elsewhere, SETTINGS, trigger="cli", train=train_on_cluster)

    assert there.outcome == "canary", there.reason
    candidate = elsewhere.folder(str(there.candidate))
    assert load_artefact(candidate).version == there.candidate
    assert load_artefact(candidate).manifest.parent == registry.current().name
    assert not list(elsewhere.root.glob(".*.part"))


async def test_a_training_that_fails_on_a_cluster_says_why(tmp_path: Path) -> None:
    from gateway.runtime.cluster.training import train_on_cluster

    (tmp_path / ORDER).write_bytes(
        b'{"root_artefact": "/nowhere/r", "incumbent": "/nowhere/i", "registry": "/nowhere", "catalogue_fingerprint": '
        b'"f", "models": {}, "window_start": null, "window_end": null, "seed": 0, "prior": []}'
    )

    with pytest.raises(TrainingProcessError, match="training ended with exit status 1"):
        await train_on_cluster(tmp_path, lambda step, share: None, timeout_seconds=120)
