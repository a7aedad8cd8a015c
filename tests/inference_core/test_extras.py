"""Extras: what an installation lacks is named with the command that installs it."""

import re
import sys
import tomllib
from pathlib import Path

import pytest

from inference_core.extras import MODULES, MissingExtraError, extra_of, missing_modules, optional_imports, require_extra

ROOT = Path(__file__).parents[2]
# Where a package is not imported under its own name.
IMPORTED_AS = {
    "huggingface-hub": "huggingface_hub",
    "scikit-learn": "sklearn",
    "nvidia-ml-py": "pynvml",
    "google-auth": "google.auth",
    "opentelemetry-exporter-otlp-proto-http": "opentelemetry",
    "opentelemetry-sdk": "opentelemetry",
}


def modules_of(requirements: list[str]) -> set[str]:
    names = [re.match(r"[\w-]+(\[\w+(,\w+)*\])?", one) for one in requirements]
    found = {match[0] for match in names if match is not None}
    return {IMPORTED_AS.get(bare, bare) for name in found if (bare := name.partition("[")[0]) != "aio-gateway"}


def test_the_modules_of_every_extra_are_those_of_the_project_file_and_none_is_in_the_base() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    assert {extra: set(names) for extra, names in MODULES.items()} == {e: modules_of(extras[e]) for e in MODULES}
    assert not modules_of(project["dependencies"]) & {name for names in MODULES.values() for name in names}


def test_what_is_missing_is_named_with_the_command_that_installs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    require_extra("train", "fitting")
    monkeypatch.setitem(sys.modules, "sklearn", None)
    assert missing_modules("train") == ["sklearn"]
    with pytest.raises(MissingExtraError, match=re.escape("fitting needs sklearn, which this installation lacks: pip")):
        require_extra("train", "fitting")


def test_an_import_of_an_extra_that_fails_is_explained_and_any_other_is_passed_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    with pytest.raises(MissingExtraError, match="aio-gateway\\[local\\]"), optional_imports("a tokeniser"):
        import tokenizers  # noqa: F401
    with pytest.raises(ModuleNotFoundError, match="no_such_package"), optional_imports("a tokeniser"):
        import no_such_package  # noqa: F401


@pytest.mark.parametrize(
    ("module", "extra"), [("scipy.sparse", "train"), ("torch", "local"), ("json", None), (None, None)]
)
def test_a_module_belongs_to_the_extra_that_installs_it(module: str | None, extra: str | None) -> None:
    assert extra_of(module) == extra
