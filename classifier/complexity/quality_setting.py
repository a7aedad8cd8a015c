"""A quality target as configured: one of three named settings, or a number from 0 to 1. Imports no numpy."""

from typing import Annotated, Literal

import msgspec

QualitySetting = Annotated[float, msgspec.Meta(ge=0, le=1)] | Literal["economy", "balanced", "careful"]
# A target t says that a strongest answer is worth 1 - t, in shares of answers as good (`classifier.policy.utility`).
QUALITY_SETTINGS: dict[str, float] = {"economy": 0.5, "balanced": 0.7, "careful": 0.9}
DEFAULT_TARGET = QUALITY_SETTINGS["balanced"]


def target_of(setting: QualitySetting | None) -> float | None:
    """Return the number of a setting; None stays None."""
    return QUALITY_SETTINGS[setting] if isinstance(setting, str) else setting
