"""LiteLLM's config.yaml: its model_list, fallbacks, aliases and settings."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from gateway.operations.setup.found_tiers import SetupError
from gateway.operations.setup.other_gateways.account import Account, Fields, listed, mapping, tables, value_at
from gateway.operations.setup.other_gateways.migrate import Fallback, Source
from gateway.operations.setup.other_gateways.models import Entry
from inference_core.io.files import read_text_file

_TWICE = "the key occurs again in the same mapping, and the last value holds, as with LiteLLM"


def read_litellm(path: Path, account: Account) -> Source:
    """Return what a config.yaml says, and note its settings. Raises `SetupError` if it is none."""
    config = _read(path, account)
    if not isinstance(config.get("model_list"), list):
        raise SetupError(f"{path} has no model_list: give the config.yaml of a LiteLLM proxy")
    declared = mapping(config.get("environment_variables"))
    source = Source(
        gateway="LiteLLM",
        document=config,
        entries=list(_entries(config, account)),
        fallbacks=list(_fallbacks(config)),
        aliases=dict(_aliases(config)),
        environ={str(name): str(value) for name, value in declared.items() if value is not None},
    )
    source.settings.read(config, "", tables()["litellm"]["settings"], account)
    account.leave_rows(config, "", tables()["litellm"]["not_carried"])
    return source


def _entries(config: Mapping[str, Any], account: Account) -> Iterator[Entry]:
    """Yield the entries of the model_list, with the values of the credentials that they name."""
    credentials: dict[object, dict[str, Any]] = {}
    for index, credential in enumerate(map(mapping, listed(config.get("credential_list")))):
        credentials[str(credential.get("credential_name"))] = mapping(credential.get("credential_values"))
        account.carry(f"credential_list[{index}]", "the entries that name it")
    rows = tables()["litellm"]
    for index, entry in enumerate(map(mapping, config["model_list"])):
        path, fields, params = f"model_list[{index}]", Fields(), mapping(entry.get("litellm_params"))
        name = entry.get("model_name")
        if not isinstance(name, str) or not name:
            account.leave(path, "it has no model_name")
            continue
        if (named := str(params.get("litellm_credential_name"))) in credentials:
            fields.read(credentials[named], f"{path}.litellm_params", rows["litellm_params"], account)
            account.carry(f"{path}.litellm_params.litellm_credential_name", "its server")
        fields.read(entry, path, rows["entry"], account)
        of_params = rows["litellm_params"] | rows["prices"] | tables()["params"]
        fields.read(params, f"{path}.litellm_params", of_params, account)
        of_info = rows["model_info"] | rows["prices"]
        fields.read(mapping(entry.get("model_info")), f"{path}.model_info", of_info, account)
        for values, below in ((entry, path), (params, f"{path}.litellm_params")):
            account.leave_rows(values, below, rows["not_carried"])
        yield Entry(name, fields, path, f"{path}.model_name")


def _fallbacks(config: Mapping[str, Any]) -> Iterator[Fallback]:
    """Yield the fallbacks, those of contexts behind the others; a default is that of any name."""
    for field in ("fallbacks", "context_window_fallbacks", "default_fallbacks"):
        for section in ("litellm_settings", "router_settings"):
            fallbacks = value_at(config, f"{section}.{field}")
            if field == "default_fallbacks" and fallbacks is not None:
                yield Fallback("*", _texts(fallbacks), f"{section}.{field}")
                continue
            for index, fallback in enumerate(listed(fallbacks)):
                for name, others in mapping(fallback).items():
                    yield Fallback(str(name), _texts(others), f"{section}.{field}[{index}].{name}")


def _texts(value: object) -> list[str]:
    return [value] if isinstance(value, str) else [text for text in listed(value) if isinstance(text, str)]


def _aliases(config: Mapping[str, Any]) -> Iterator[tuple[str, tuple[str, str]]]:
    for path in ("litellm_settings.model_alias_map", "router_settings.model_group_alias"):
        for alias, target in mapping(value_at(config, path)).items():
            model = target.get("model") if isinstance(target, dict) else target
            if isinstance(model, str):
                yield str(alias), (model, f"{path}.{alias}")


def _read(path: Path, account: Account) -> dict[str, Any]:
    # Imported here: nothing else reads YAML.
    import yaml

    class Loader(yaml.SafeLoader):  # type: ignore[misc]
        """Notes keys that occur twice in a mapping."""

        def construct_mapping(self, node: Any, deep: bool = False) -> Any:
            keys = [key for key, _ in node.value if isinstance(key.value, str) and key.value != "<<"]
            for index, key in enumerate(keys):
                if key.value in [other.value for other in keys[index + 1 :]]:
                    account.leave(f"{path.name} line {key.start_mark.line + 1}, {key.value}", _TWICE)
            return super().construct_mapping(node, deep=deep)

    try:
        return mapping(yaml.load(read_text_file(path), Loader))  # noqa: S506 - the loader is a SafeLoader
    except OSError as error:
        raise SetupError(f"{path} cannot be read: {error}") from error
    except (yaml.YAMLError, ValueError, TypeError) as error:
        raise SetupError(f"{path} is no YAML: {' '.join(str(error).split())}") from error
