"""What a gateway of local models imports: not what only servers elsewhere or a setting needs."""

from pathlib import Path

import pytest

from tests.gateway.imported_modules import imported_modules
from tests.gateway.tiny_versions import Versions

pytestmark = pytest.mark.processes

LATE = (
    "tiers.remote.remote_tier",
    "tiers.remote.endpoint",
    "tiers.replicas.replica_set",
    "gateway.batches.redis_queue",
    "gateway.runtime.engines.running_engines",
)


def test_a_gateway_of_local_models_imports_what_it_serves_with(tmp_path: Path) -> None:
    versions = Versions(tmp_path)
    versions.write("old")

    imported = imported_modules(tmp_path / "data", tmp_path / "cache", "--catalog", str(versions.file))

    assert {"gateway.app", "inference_core.engine.core", "tiers.local.local_tier"} <= imported
    assert not imported & set(LATE)
