"""Which gateway a file is of, and its migration."""

import json
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gateway.operations.setup.found_tiers import SetupError
from gateway.operations.setup.gateways.hosted import is_portkey, presets_of, read_portkey, read_presets
from gateway.operations.setup.gateways.served import read_bifrost, read_tensorzero
from gateway.operations.setup.gateways.translation import Translation
from gateway.operations.setup.litellm.config_file import Account, mapping
from gateway.operations.setup.litellm.migration import Migration, migrated, migrated_config
from gateway.operations.setup.litellm.models import ModelsAt
from inference_core.io.files import read_text_file
from tiers.catalog.tier_spec import MAX_TIERS


def migrated_file(
    path: Path, environ: Mapping[str, str], models_at: ModelsAt = lambda url, key: [], most: int = MAX_TIERS
) -> Migration:
    """Return the migration of LiteLLM's config.yaml, Portkey's or Bifrost's JSON, TensorZero's tensorzero.toml or
    presets of OpenRouter, as the content tells. Raises `SetupError`."""
    translation = _translated(path)
    if translation is None:
        return migrated(path, environ, models_at, most)
    account = Account()
    found = migrated_config(translation.config, account, environ, models_at, most)
    found.account = translation.renamed(account)
    found.candidates = [translation.named(one) for one in found.candidates]
    found.targets = [translation.named(one) for one in found.targets]
    found.variables = {name: translation.place_of(place) or place for name, place in found.variables.items()}
    return found


def _translated(path: Path) -> Translation | None:
    """None for LiteLLM's YAML."""
    if path.suffix not in (".json", ".toml"):
        return None
    try:
        text = read_text_file(path)
        found: Any = tomllib.loads(text) if path.suffix == ".toml" else json.loads(text)
    except (OSError, ValueError) as error:
        raise SetupError(f"{path} cannot be read: {' '.join(str(error).split())}") from error
    document = mapping(found)
    if path.suffix == ".toml":
        if not document.keys() & {"models", "functions", "embedding_models"}:
            raise SetupError(f"{path} has no models and no functions: give a tensorzero.toml")
        return read_tensorzero(document)
    if isinstance(document.get("providers"), dict):
        return read_bifrost(document)
    if is_portkey(document):
        return read_portkey(document)
    if presets_of(found):
        return read_presets(found)
    raise SetupError(f"{path} is no config of Portkey or Bifrost, and has no presets of OpenRouter")
