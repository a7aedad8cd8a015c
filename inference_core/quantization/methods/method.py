"""What every way of quantising a model has in common: layer by layer, from weights and what calibration saw."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch

from inference_core.model_config import ModelConfig
from inference_core.quantization.activation_statistics import ActivationStatistics
from inference_core.quantization.layer import LayerTensors, Site

Statistics = Mapping[Site, ActivationStatistics]
# What of the activations a method looks at; the more, the more calibration costs.
Needs = Literal["nothing", "peaks", "moments"]


@dataclass(frozen=True, slots=True)
class StoredLinear:
    """A quantised linear layer: its tensors as the file holds them, by suffix, and what they stand for,
    float32 [out, in].
    """

    parts: dict[str, torch.Tensor]
    values: torch.Tensor


class QuantizationMethod(ABC):
    """Contract: `quantize` leaves a layer's outputs unchanged but for the rounding of its linear weights, and is
    deterministic. Settings are the constructor's.
    """

    name: ClassVar[str]
    needs: ClassVar[Needs]
    default_dtype: ClassVar[torch.dtype]

    @abstractmethod
    def check(self, config: ModelConfig) -> None:
        """Raises QuantizationError for a model whose shapes the format cannot hold."""

    @abstractmethod
    def quantize(
        self, tensors: LayerTensors, statistics: Statistics, config: ModelConfig, dtype: torch.dtype
    ) -> dict[str, StoredLinear]:
        """Every linear layer of one decoder layer, by its name.

        `tensors`, float32, is the caller's no longer: scales are folded into its norms and biases, which are stored in
        `dtype`.
        """

    @abstractmethod
    def quantization_config(self) -> dict[str, Any]:
        """What config.json says of it, in the words of the format's own tools."""

    @abstractmethod
    def settings(self) -> dict[str, Any]:
        """The method's settings by name, for the record."""


def linear_inputs(config: ModelConfig) -> set[int]:
    """How many inputs the linear layers of a decoder layer have."""
    return {config.hidden_size, config.num_heads * config.head_dim, config.intermediate_size}


def linear_outputs(config: ModelConfig) -> set[int]:
    """How many outputs they have."""
    kv = config.num_kv_heads * config.head_dim
    return {config.hidden_size, config.num_heads * config.head_dim, kv, config.intermediate_size}
