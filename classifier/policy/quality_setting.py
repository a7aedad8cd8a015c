"""A quality target as configured: one of three named settings, or a number from 0 to 1."""

from typing import Annotated, Literal

import msgspec

QualitySetting = Annotated[float, msgspec.Meta(ge=0, le=1)] | Literal["economy", "balanced", "careful"]


def target_of(setting: QualitySetting | None) -> float | None:
    """Return the number of a setting; None stays None."""
    if not isinstance(setting, str):
        return setting
    # Imported here, so that reading the settings (and with it the command line) does not import numpy.
    from classifier.complexity.prior import QUALITY_SETTINGS

    return QUALITY_SETTINGS[setting]
