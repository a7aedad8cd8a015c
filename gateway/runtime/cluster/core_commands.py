"""Operators' changes to a running core, to be repeated to replicas that join later."""

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from gateway.runtime.cluster.replica_choice import CoreReplica
from inference_core.errors import InvalidRequestError
from inference_core.protocol import KnobValue

log = logging.getLogger(__name__)

Changes = dict[str, KnobValue]


class CoreCommands:
    """The last values of knobs, and the loaded adapters."""

    def __init__(self) -> None:
        self._knobs: list[tuple[str | None, Changes]] = []
        self._adapters: dict[tuple[str, str], str] = {}

    def note_knobs(self, changes: Mapping[str, KnobValue], model: str | None) -> None:
        """Record knobs; `model` None means every model, and overrides earlier values of one."""
        for of, earlier in self._knobs:
            if model is None or of == model:
                for name in changes:
                    earlier.pop(name, None)
        self._knobs = [(of, earlier) for of, earlier in [*self._knobs, (model, dict(changes))] if earlier]

    def note_adapter(self, model: str, name: str, path: str | None) -> None:
        """Record an adapter; `path` None: it is unloaded."""
        if path is None:
            self._adapters.pop((model, name), None)
        else:
            self._adapters[model, name] = path

    async def repeat(self, replica: CoreReplica) -> None:
        """Send all of it to `replica`; what it refuses is logged. Raises `CoreGoneError`."""
        for model, changes in self._knobs:
            with _logged_refusal(f"knobs {', '.join(changes)}"):
                await replica.set_knobs(changes, model)
        for (model, name), path in self._adapters.items():
            with _logged_refusal(f"adapter {name} of {model}"):
                await replica.client.load_adapter(model, name, path)


@contextmanager
def _logged_refusal(order: str) -> Iterator[None]:
    try:
        yield
    except InvalidRequestError as error:
        log.warning("a new replica does not have %s: %s", order, error)
