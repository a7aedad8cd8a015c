"""Names of models resolve to files, inside packages too, and never outside of them."""

from pathlib import Path

import pytest

from inference_core.errors import ModelFileError
from inference_core.loaders.hub_model import resolve_model_path


def test_a_plain_path_is_itself(tmp_path: Path) -> None:
    (tmp_path / "m.gguf").touch()

    assert resolve_model_path(str(tmp_path / "m.gguf")) == tmp_path / "m.gguf"


def test_a_package_file_is_found_without_importing_the_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "weights_package"
    package.mkdir()
    (package / "__init__.py").write_text("raise RuntimeError('imported')")
    (package / "m.gguf").touch()
    monkeypatch.syspath_prepend(str(tmp_path))

    assert resolve_model_path("package:weights_package/m.gguf") == package / "m.gguf"


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("/nowhere/m.gguf", "does not exist"),
        ("package:no_such_package/m.gguf", "'no_such_package' is not installed"),
        ("package:numpy/none.gguf", "does not exist"),
        ("package:numpy", "expected package:NAME/FILE"),
        ("package:numpy/", "expected package:NAME/FILE"),
        ("package:numpy/../secret", "expected package:NAME/FILE"),
        ("package:numpy//etc/passwd", "expected package:NAME/FILE"),
        ("package:../numpy/x", "expected package:NAME/FILE"),
    ],
)
def test_what_names_no_model_is_refused(text: str, reason: str) -> None:
    with pytest.raises(ModelFileError, match=reason):
        resolve_model_path(text)
