"""Serves the adapters that a core's specification names, when the core is loaded."""

from collections.abc import Iterable
from typing import Protocol

from inference_core.core import Core
from inference_core.errors import InvalidRequestError, ModelFileError


class AdaptedModel(Protocol):
    """What a specification says of a model: its name, and PEFT folders by the names to serve them under."""

    @property
    def name(self) -> str: ...

    @property
    def adapters(self) -> dict[str, str]: ...


def load_adapters(core: Core, models: Iterable[AdaptedModel]) -> None:
    """Serve the adapters that `models` name. Raises ModelFileError for one that cannot be served."""
    for model in models:
        for name, folder in model.adapters.items():
            try:
                core.load_adapter(model.name, name, folder)
            except InvalidRequestError as error:
                raise ModelFileError(f"{model.name}: {error}") from error
