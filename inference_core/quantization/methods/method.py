"""The interface of quantisation methods, which quantise one layer at a time from weights and activation statistics."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch

from inference_core.model_config import ModelConfig
from inference_core.quantization.activation_statistics import ActivationStatistics
from inference_core.quantization.layer import LayerTensors, Site

Statistics = Mapping[Site, ActivationStatistics]
# The activation statistics that a method needs, by increasing cost of calibration.
Needs = Literal["nothing", "peaks", "moments"]


@dataclass(frozen=True, slots=True)
class StoredLinear:
    """A quantised linear layer: its tensors in the file, by suffix, and their values, float32 [out, in]."""

    parts: dict[str, torch.Tensor]
    values: torch.Tensor


class QuantizationMethod(ABC):
    """Contract: `quantize` changes a layer's outputs only by the rounding of its linear weights, and is deterministic.
    Settings are arguments of the constructor.
    """

    name: ClassVar[str]
    needs: ClassVar[Needs]
    default_dtype: ClassVar[torch.dtype]

    @abstractmethod
    def check(self, config: ModelConfig) -> None:
        """Raises QuantizationError for a model whose shapes the format cannot store."""

    @abstractmethod
    def quantize(
        self, tensors: LayerTensors, statistics: Statistics, config: ModelConfig, dtype: torch.dtype
    ) -> dict[str, StoredLinear]:
        """Quantise every linear layer of one decoder layer; returned by name.

        Modifies `tensors` (float32): scales are folded into its norms and biases, which are stored in `dtype`.
        """

    @abstractmethod
    def quantization_config(self) -> dict[str, Any]:
        """The `quantization_config` of config.json, as the format's own tools write it."""

    @abstractmethod
    def settings(self) -> dict[str, Any]:
        """The method's settings by name, for the record."""


def linear_inputs(config: ModelConfig) -> set[int]:
    """The numbers of inputs of a decoder layer's linear layers."""
    return {config.hidden_size, config.num_heads * config.head_dim, config.intermediate_size}


def linear_outputs(config: ModelConfig) -> set[int]:
    """The numbers of outputs of a decoder layer's linear layers."""
    kv = config.num_kv_heads * config.head_dim
    return {config.hidden_size, config.num_heads * config.head_dim, kv, config.intermediate_size}
