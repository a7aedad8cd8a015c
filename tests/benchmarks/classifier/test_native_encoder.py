"""An encoder in INT8 next to float32, as a command."""

from pathlib import Path

import pytest
from click.testing import CliRunner

from benchmarks.classifier.native_encoder import compared, native_encoder_command
from classifier.encoders.native_transformer import KERNEL_SETS
from classifier.native import KERNELS
from tests.classifier.tiny_checkpoints import tiny_checkpoint

TEXTS = [f"Why is the sum of case {i} not as in {i * 7}?" for i in range(20)]


@pytest.mark.skipif(KERNELS is None, reason="the native extension is not built")
def test_states_are_alike_and_every_way_is_timed(tmp_path: Path) -> None:
    folder = tiny_checkpoint(tmp_path / "c", "bert", TEXTS)
    found = compared(folder, TEXTS, 2)
    assert found.rows == 20
    assert 0.999 < found.least <= found.mean <= 1.0001
    assert list(found.milliseconds) == ["torch float32", *(f"INT8 {kernels}" for kernels in KERNEL_SETS)]
    assert min(found.milliseconds.values()) > 0


def test_another_architecture_is_an_error_with_its_name(tmp_path: Path) -> None:
    folder = tiny_checkpoint(tmp_path / "m", "modernbert", TEXTS)
    rows = tmp_path / "rows.jsonl"
    rows.write_text('{"prompt": "Why?"}\n')
    found = CliRunner().invoke(native_encoder_command, [str(folder), str(rows)])
    assert found.exit_code == 1
    assert "Error" in found.output
