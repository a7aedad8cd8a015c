"""A configuration of another gateway in LiteLLM's form, for which there is a migration, with the place of each field in
the file, so that the account names the file's own fields.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import msgspec

from gateway.operations.setup.candidate import Candidate
from gateway.operations.setup.litellm.config_file import ENVIRONMENT, Account, upwards

# Settings of a request that an entry of LiteLLM's has under the same name.
OF_REQUESTS = (
    "temperature", "top_p", "max_tokens", "max_completion_tokens", "presence_penalty", "frequency_penalty", "stop",
    "reasoning_effort", "parallel_tool_calls", "service_tier", "verbosity",
)  # fmt: skip
PARAMS = "litellm_params"


class Field(NamedTuple):
    """A value, and its path in the file."""

    value: Any
    path: str


class Translation:
    """LiteLLM's form of `document`. `places`: path there → path in the file; `left` and
    `carried`: fields of the file that become nothing or something without one there, with the reason or what."""

    def __init__(self, gateway: str, document: Mapping[str, Any]) -> None:
        self.gateway, self.document = gateway, document
        self.config: dict[str, Any] = {
            "model_list": [], "router_settings": {"fallbacks": [], "model_group_alias": {}}, "litellm_settings": {},
            "general_settings": {},
        }  # fmt: skip
        self.places: dict[str, str] = {}
        self.left: dict[str, str] = {}
        self.carried: dict[str, str] = {}

    def add(self, whole: str, name: Field, model: Field, params: Mapping[str, Field]) -> None:
        """Add an entry; of `params` those that have a value. `whole`: its path; `model`: as `provider/model`."""
        place = f"model_list[{len(self.config['model_list'])}]"
        given = {"model": model, **{key: one for key, one in params.items() if one.value is not None}}
        self.config["model_list"].append(
            {"model_name": name.value, PARAMS: {key: one.value for key, one in given.items()}}
        )
        self.places |= {place: whole, f"{place}.model_name": name.path}
        self.places |= {f"{place}.{PARAMS}.{key}": one.path for key, one in given.items()}

    def chain(self, name: str, others: list[str], path: str) -> None:
        """Let others stand in for a name, in their order."""
        others = [one for one in dict.fromkeys(others) if one != name]
        if others:
            lists = self.config["router_settings"]["fallbacks"]
            self.places[f"router_settings.fallbacks[{len(lists)}].{name}"] = path
            lists.append({name: others})

    def alias(self, alias: str, name: str, path: str) -> None:
        """Let a name answer to another one, too."""
        self.config["router_settings"]["model_group_alias"][alias] = name
        self.places[f"router_settings.model_group_alias.{alias}"] = path

    def set(self, section: str, name: str, field: Field) -> None:
        """Set what holds for all, unless it is set."""
        if field.value is not None and name not in self.config[section]:
            self.config[section][name] = field.value
            self.places[f"{section}.{name}"] = field.path

    def params(self, values: Mapping[str, Any], path: str) -> dict[str, Field]:
        """Return the settings of requests among `values`, which stand at `path`."""
        return {name: Field(values[name], f"{path}.{name}") for name in OF_REQUESTS if name in values}

    def leave(self, values: Mapping[str, Any], path: str, reasons: Mapping[str, str]) -> None:
        """Note why those of `values` become nothing that have a reason."""
        for name, why in reasons.items():
            if values.get(name) not in (None, {}, []):
                self.left[f"{path}.{name}" if path else name] = why

    def renamed(self, found: Account) -> Account:
        """Return the account of this form as one of the file; what has no place there is left out."""
        account = Account()
        for fields, noted in ((found.carried, account.carried), (found.left, account.left)):
            for path, text in fields.items():
                place = self.place_of(path)
                if place is not None and place not in self.left:
                    said = noted.get(place, text)
                    noted[place] = said if text in said.split("; ") else f"{said}; {text}"
        account.left |= self.left
        account.carried = self.carried | account.carried
        account.close(self.document)
        return account

    def named(self, one: Candidate) -> Candidate:
        """Return an entry whose source is this gateway."""
        return msgspec.structs.replace(one, source=one.source.replace("LiteLLM", self.gateway, 1))

    def place_of(self, path: str) -> str | None:
        """Return the place in the file of a path in this form, or of what it is part of."""
        return next((self.places[one] for one in upwards(path) if one in self.places), None)


def variable(value: Any, prefixes: tuple[str, ...]) -> Any:
    """Return a text that names an environment variable after one of `prefixes` as LiteLLM does; others as is."""
    found = next((one for one in prefixes if isinstance(value, str) and value.startswith(one)), None)
    return value if found is None else ENVIRONMENT + value.removeprefix(found).rstrip("}").strip()
