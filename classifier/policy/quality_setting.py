"""A quality target as people write it: one of three named settings, or a number from 0 to 1."""

from typing import Annotated, Literal

import msgspec

from classifier.complexity.prior import QUALITY_SETTINGS

QualitySetting = Annotated[float, msgspec.Meta(ge=0, le=1)] | Literal["economy", "balanced", "careful"]


def target_of(setting: QualitySetting | None) -> float | None:
    """The number that a setting stands for; None stays None."""
    return QUALITY_SETTINGS[setting] if isinstance(setting, str) else setting
