"""The live knobs of each model: partial changes, validated as a whole first, kept on disk on request."""

import logging
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from inference_core.errors import InvalidRequestError
from inference_core.io.files import atomic_file, prepare_types
from inference_core.model_spec import CoreSpec
from inference_core.protocol import Knobs, KnobValue

log = logging.getLogger(__name__)

KNOB_NAMES = Knobs.__struct_fields__
# Knobs that are the same for all models of a core.
COMMON_KNOBS = ("threads",)
Changes = Mapping[str, KnobValue]


prepare_types(Knobs)


def knob_schemas() -> dict[str, dict[str, Any]]:
    """Return the JSON schema of each knob: type, bounds or choices, default and description."""
    schema = msgspec.json.schema(Knobs)
    properties: dict[str, dict[str, Any]] = schema["$defs"]["Knobs"]["properties"]
    return properties


_SCHEMAS = knob_schemas()


def changed_knobs(knobs: Knobs, changes: Changes, start: Knobs) -> Knobs:
    """`knobs` with `changes`; None puts a knob back to its value in `start`.

    Raises `InvalidRequestError` that names the knob, what was given and what is allowed.
    """
    values = msgspec.structs.asdict(knobs)
    for name, value in changes.items():
        if name not in KNOB_NAMES:
            raise InvalidRequestError(f"{name} is no knob; there are {', '.join(KNOB_NAMES)}", name)
        values[name] = getattr(start, name) if value is None else _checked(name, value)
    return Knobs(**values)


def start_knobs(spec: CoreSpec) -> dict[str, Knobs]:
    """Return the start knobs of each model: defaults, then the core's, then its own. Raises `InvalidRequestError`."""
    defaults = Knobs(threads=spec.threads or 0)
    common = changed_knobs(defaults, spec.knobs, defaults)
    for model in spec.models:
        _require_common(model.knobs, model.name)
    return {model.name: changed_knobs(common, model.knobs, common) for model in spec.models}


class LiveKnobs:
    """Knobs by model. `start`: what every model starts with; `file`: where kept changes outlast the process; `most`:
    the largest values of knobs that the core has memory for.

    Raises `InvalidRequestError` if a value in `start`, or one that was kept, is not allowed.
    """

    def __init__(
        self, start: Mapping[str, Knobs], file: "KnobsFile | None" = None, most: Mapping[str, int] | None = None
    ) -> None:
        self._most = dict(most or {})
        self._start = {
            model: self._changed(knobs, msgspec.structs.asdict(knobs), knobs) for model, knobs in start.items()
        }
        self._file = file
        self._kept = {} if file is None else file.read(self._start)
        self.active = {
            model: self._changed(knobs, self._kept.get(model, {}), knobs) for model, knobs in self._start.items()
        }

    def of(self, model: str) -> Knobs:
        return self.active[model]

    def start_of(self, model: str) -> Knobs:
        """The knobs that one model was started with, to which None puts them back."""
        return self._start[model]

    def change(self, changes: Changes, model: str | None = None, keep: bool = False) -> None:
        """Change the named knobs of `model`, or of all models, at once.

        Raises `InvalidRequestError` and changes nothing if a knob is refused or a kept change cannot be written.
        """
        after = self.after(changes, model)
        if keep:
            self._keep(changes, list(after))
        self.active = self.active | after

    def after(self, changes: Changes, model: str | None = None) -> dict[str, Knobs]:
        """Return the knobs that a change of `model`, or of all models, would give them; raises as `change` does."""
        if model is not None and model not in self.active:
            raise InvalidRequestError(f"model {model!r} is unknown; loaded: {', '.join(self.active)}", "model")
        _require_common(changes, model)
        models = list(self.active) if model is None else [model]
        return {name: self._changed(self.active[name], changes, self._start[name]) for name in models}

    def _changed(self, knobs: Knobs, changes: Changes, start: Knobs) -> Knobs:
        after = changed_knobs(knobs, changes, start)
        for name, most in self._most.items():
            if getattr(after, name) > most:
                raise InvalidRequestError(
                    f"{name} is {getattr(after, name):,}; this core was loaded with room for {most:,}", name
                )
        return after

    def _keep(self, changes: Changes, models: list[str]) -> None:
        if self._file is None:
            raise InvalidRequestError("keep is true, but this core was started without a file to keep knobs in", "keep")
        kept = dict(self._kept)
        for model in models:
            merged = {**kept.get(model, {}), **changes}
            kept[model] = {name: value for name, value in merged.items() if value is not None}
        try:
            self._file.write(kept)
        except OSError as error:
            raise InvalidRequestError(
                f"keep is true, but {self._file.path} cannot be written: {error}", "keep"
            ) from error
        self._kept = kept


class KnobsFile:
    """Changed knobs by model, as JSON at `path`. It is read at start and written whole."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def read(self, start: Mapping[str, Knobs]) -> dict[str, dict[str, KnobValue]]:
        """Return the kept knobs of the models of `start`; log and ignore invalid ones, so that serving starts."""
        try:
            kept = msgspec.json.decode(self.path.read_bytes(), type=dict[str, dict[str, KnobValue]])
        except FileNotFoundError:
            return {}
        except (OSError, msgspec.DecodeError) as error:
            log.warning("kept knobs are ignored: %s cannot be read: %s", self.path, error)
            return {}
        return {
            model: {name: value for name, value in values.items() if self._is_valid(name, value)}
            for model, values in kept.items()
            if model in start
        }

    def write(self, kept: Mapping[str, Changes]) -> None:
        """Replace the file. Raises OSError."""
        with atomic_file(self.path) as file:
            file.write(msgspec.json.format(msgspec.json.encode(kept), indent=2) + b"\n")

    def _is_valid(self, name: str, value: KnobValue) -> bool:
        try:
            changed_knobs(Knobs(), {name: value}, Knobs())
        except InvalidRequestError as error:
            log.warning("a kept knob is ignored (%s): %s", self.path, error)
            return False
        return True


def _require_common(changes: Changes, model: str | None) -> None:
    """Raises `InvalidRequestError` if a common knob is to change for `model` alone."""
    for name in COMMON_KNOBS:
        if model is not None and name in changes:
            raise InvalidRequestError(
                f"{name} is the same for all models of a core; leave model out to change it", name
            )


def _checked(name: str, value: KnobValue) -> Any:
    try:
        if isinstance(value, float) and not math.isfinite(value):
            raise msgspec.ValidationError("not finite")
        return getattr(msgspec.convert({name: value}, Knobs), name)
    except msgspec.ValidationError:
        raise InvalidRequestError(f"{name} is {_shown(value)}; allowed: {_allowed(_SCHEMAS[name])}", name) from None


def _shown(value: KnobValue) -> str:
    """Return the value as JSON; floats as Python prints them, since JSON has no infinity."""
    return str(value) if isinstance(value, float) else msgspec.json.encode(value).decode()


def _allowed(schema: Mapping[str, Any]) -> str:
    if "enum" in schema:
        return ", ".join(_shown(choice) for choice in schema["enum"])
    if schema["type"] == "boolean":
        return "true or false"
    if schema["type"] == "array":
        return f"a list, each {_allowed(schema['items'])}"
    if schema["type"] == "integer":
        return f"a whole number from {schema['minimum']:,} to {schema['maximum']:,}"
    return f"a number from {schema['minimum']:,g} to {schema['maximum']:,g}"
