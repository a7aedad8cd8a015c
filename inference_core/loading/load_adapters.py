"""Loads the adapters of a core's specification at start."""

from collections.abc import Iterable
from typing import Protocol

from inference_core.core import Core
from inference_core.errors import InvalidRequestError, ModelFileError


class AdaptedModel(Protocol):
    """A model's name in a specification, and PEFT folders by the names under which to serve them."""

    @property
    def name(self) -> str: ...

    @property
    def adapters(self) -> dict[str, str]: ...


def load_adapters(core: Core, models: Iterable[AdaptedModel]) -> None:
    """Load the adapters of `models`. Raises ModelFileError for one that cannot be served."""
    for model in models:
        for name, folder in model.adapters.items():
            try:
                core.load_adapter(model.name, name, folder, listed=True)
            except InvalidRequestError as error:
                raise ModelFileError(f"{model.name}: {error}") from error
