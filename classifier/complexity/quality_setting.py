"""A quality target as configured: one of three named settings, or a number from 0 to 1. Imports no numpy."""

from typing import Annotated, Literal

import msgspec

QualitySetting = Annotated[float, msgspec.Meta(ge=0, le=1)] | Literal["economy", "balanced", "careful"]
# The least P(good enough) of the chosen tier's answer.
QUALITY_SETTINGS: dict[str, float] = {"economy": 0.6, "balanced": 0.7, "careful": 0.85}
DEFAULT_TARGET = QUALITY_SETTINGS["balanced"]


def target_of(setting: QualitySetting | None) -> float | None:
    """Return the number of a setting; None stays None."""
    return QUALITY_SETTINGS[setting] if isinstance(setting, str) else setting
