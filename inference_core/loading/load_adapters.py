"""Loads the adapters that a core's specification names."""

from collections.abc import Iterable
from typing import Protocol

from inference_core.core import Core
from inference_core.errors import InvalidRequestError, ModelFileError


class AdaptedModel(Protocol):
    """The part of a model's specification that names its adapters: PEFT folders by adapter name."""

    @property
    def name(self) -> str: ...

    @property
    def adapters(self) -> dict[str, str]: ...


def load_adapters(core: Core, models: Iterable[AdaptedModel]) -> None:
    """Load the adapters that `models` name. Raises ModelFileError for an adapter that cannot be loaded."""
    for model in models:
        for name, folder in model.adapters.items():
            try:
                core.load_adapter(model.name, name, folder)
            except InvalidRequestError as error:
                raise ModelFileError(f"{model.name}: {error}") from error
