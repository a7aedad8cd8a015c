"""Kernels that were not built, or of other sources, are not used, and the log says so once."""

import runpy
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import classifier.native
from gateway.inference import classifier_versions
from gateway.inference.classifier_versions import ActiveClassifier

LOADER = str(Path(classifier.native.__file__))


def loaded(monkeypatch: pytest.MonkeyPatch, extension: Any) -> dict[str, Any]:
    """What the module finds where `extension` is installed; None: nothing."""
    monkeypatch.setitem(sys.modules, "classifier.native._decision", extension)
    if extension is None:
        monkeypatch.delattr(classifier.native, "_decision", raising=False)
    else:
        monkeypatch.setattr(classifier.native, "_decision", extension, raising=False)
    return runpy.run_path(LOADER)


@pytest.mark.parametrize(
    ("extension", "told"),
    [(None, "no native kernels for decisions"), (SimpleNamespace(VERSION=1), "kernels for decisions of other sources")],
)
def test_missing_kernels_are_named(monkeypatch: pytest.MonkeyPatch, extension: Any, told: str) -> None:
    monkeypatch.delenv("AIO_NATIVE", raising=False)
    found = loaded(monkeypatch, extension)
    assert found["KERNELS"] is None
    assert told in found["MISSING"]


def test_kernels_that_are_switched_off_are_not_missed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIO_NATIVE", "off")
    found = loaded(monkeypatch, SimpleNamespace(VERSION=1))
    assert (found["KERNELS"], found["MISSING"]) == (None, "")


@pytest.mark.parametrize("missing", ["", "no native kernels"])
def test_a_gateway_says_once_that_kernels_are_missing(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, tmp_path: Path, missing: str
) -> None:
    monkeypatch.setattr(classifier_versions, "MISSING", missing)
    active = ActiveClassifier(tmp_path, "some catalogue")
    active.load()
    active.load()
    assert [record.message for record in caplog.records] == [missing] * bool(missing)
