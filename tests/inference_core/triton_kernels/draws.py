"""The parameters of draws as tensors, for tests of the sampling ops."""

from collections.abc import Sequence

import numpy as np
import torch

from inference_core.device.step_inputs import PARAM_FIELDS, param_columns
from inference_core.step_plan import SampleSpec


def draw_params(specs: Sequence[SampleSpec]) -> dict[str, torch.Tensor]:
    """A column [R] on the CPU per field of `PARAM_FIELDS`, in its order."""
    columns = param_columns(specs)
    return {name: torch.from_numpy(np.array(columns[name], dtype)) for name, dtype in PARAM_FIELDS}
