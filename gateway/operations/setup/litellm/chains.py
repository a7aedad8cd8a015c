"""LiteLLM's fallbacks: which names stand in for a name, in their order."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from gateway.operations.setup.litellm.config_file import Account, mapping

# LiteLLM's `max_fallbacks`: the fallbacks of fallbacks are tried so deep.
_DEEPEST = 5
_ANY = "*"
_CARRIED = "`fallback` of the entry"
_OF_ALL = "`fallback` of entries without their own"
_OF_CONTEXT = "the end of the entry's `fallback`, which is tried whatever the failure"
_SECTIONS = ("litellm_settings", "router_settings")
_FIELDS = (("fallbacks", _CARRIED), ("context_window_fallbacks", _OF_CONTEXT))

Resolve = Callable[[str], str | None]
"""The name of the models that a name stands for; None if there are none."""


class Chains:
    """What the file says of fallbacks. Call `of` for each name of the model_list."""

    def __init__(self, config: Mapping[str, Any], resolve: Resolve, account: Account) -> None:
        self._resolve, self._account = resolve, account
        self._paths: dict[str, list[str]] = {}
        self._own: dict[str, dict[str, list[str]]] = {field: {} for field, _ in _FIELDS}
        self._usual: list[str] | None = None
        for section in _SECTIONS:
            values = mapping(config.get(section))
            if "default_fallbacks" in values:
                self._usual = self._known(f"{section}.default_fallbacks", values["default_fallbacks"], _OF_ALL)
            for field, text in _FIELDS:
                self._read(f"{section}.{field}", values.get(field), field, text)

    def of(self, name: str) -> list[str]:
        """Return the names that stand in for `name`, those that stand in for them among them."""
        found: list[str] = []
        self._follow(name, found, 1)
        return [one for one in dict.fromkeys(found) if one != name]

    def leave(self, name: str, why: str) -> None:
        """Note that the chain of `name` became nothing."""
        for path in self._paths.get(name, []):
            self._account.leave(path, why)

    def _follow(self, name: str, found: list[str], depth: int) -> None:
        own = self._own["fallbacks"].get(name, self._usual if depth == 1 else None) or []
        for other in [*own, *self._own["context_window_fallbacks"].get(name, [])]:
            if other in found:
                continue
            found.append(other)
            if depth < _DEEPEST:
                self._follow(other, found, depth + 1)

    def _read(self, path: str, lists: object, field: str, text: str) -> None:
        for place, one in enumerate(lists if isinstance(lists, list) else []):
            for name, names in mapping(one).items():
                where = f"{path}[{place}].{name}"
                if name == _ANY:
                    self._usual = self._known(where, names, _OF_ALL)
                elif (known := self._resolve(str(name))) is None:
                    self._account.leave(where, f"no model has the name {name}")
                elif (stand_ins := self._known(where, names, text)) is not None:
                    self._own[field][known] = stand_ins
                    self._paths.setdefault(known, []).append(where)

    def _known(self, path: str, names: object, text: str) -> list[str] | None:
        """Return what the names of a list stand for, and note those that stand for nothing."""
        given: Sequence[object] = [names] if isinstance(names, str) else names if isinstance(names, list) else [None]
        found = [(name, self._resolve(name) if isinstance(name, str) else None) for name in given]
        unknown = [str(name) for name, known in found if known is None]
        if unknown and len(unknown) == len(found):
            self._account.leave(path, f"no model has the name {', '.join(unknown)}")
            return None
        self._account.carry(path, f"{text}; but for {', '.join(unknown)}, which no model has" if unknown else text)
        return [known for _, known in found if known is not None]
