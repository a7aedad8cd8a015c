"""Running statistics of a linear layer's inputs for calibration, so that no activations need to be stored."""

import torch

from inference_core.errors import QuantizationError


class ActivationStatistics:
    """Running statistics of inputs [tokens, K], float32: peak max|x| [K], magnitude mean|x| [K] and, if requested, the
    second moments mean(x xᵀ) [K, K], from which the output error of any change of the weights follows.
    """

    def __init__(self, width: int, *, moments: bool) -> None:
        self.tokens = 0
        self.peak = torch.zeros(width)
        self._magnitude = torch.zeros(width)
        self._moments = torch.zeros(width, width) if moments else None

    def add(self, inputs: torch.Tensor) -> None:
        """Add inputs [tokens, K]."""
        self.tokens += len(inputs)
        sizes = inputs.abs()
        self.peak = torch.maximum(self.peak, sizes.amax(dim=0))
        self._magnitude += sizes.sum(dim=0)
        if self._moments is not None:
            self._moments.addmm_(inputs.T, inputs)

    @property
    def magnitude(self) -> torch.Tensor:
        """mean|x| [K]."""
        return self._magnitude / max(self.tokens, 1)

    @property
    def moments(self) -> torch.Tensor:
        """mean(x xᵀ) [K, K]. Raises QuantizationError if they were not requested."""
        if self._moments is None:
            raise QuantizationError("these statistics were gathered without second moments")
        return self._moments / max(self.tokens, 1)


def output_error(change: torch.Tensor, moments: torch.Tensor) -> float:
    """The mean squared change of a layer's outputs, summed over outputs, if its weights change by `change` [N, K]:
    E|ΔW x|² = tr(ΔW E[x xᵀ] ΔWᵀ).
    """
    return float(((change @ moments) * change).sum())
