"""The parameters of draws as tensors, for tests of the sampling ops."""

from collections.abc import Sequence

import numpy as np
import torch

from inference_core.step_plan import SampleSpec
from inference_core.triton_kernels.sampling.draw_params import PARAM_FIELDS, param_columns


def draw_params(specs: Sequence[SampleSpec]) -> dict[str, torch.Tensor]:
    """A column [R] on the CPU per field of `PARAM_FIELDS`, in its order."""
    columns = param_columns(specs)
    return {name: torch.from_numpy(np.array(columns[name], dtype)) for name, dtype in PARAM_FIELDS}
