"""A quality target as configured: one of three named settings, or a number from 0 to 1."""

from typing import Annotated, Literal

import msgspec

from classifier.complexity.prior import QUALITY_SETTINGS

QualitySetting = Annotated[float, msgspec.Meta(ge=0, le=1)] | Literal["economy", "balanced", "careful"]


def target_of(setting: QualitySetting | None) -> float | None:
    """Return the number of a setting; None stays None."""
    return QUALITY_SETTINGS[setting] if isinstance(setting, str) else setting
