"""Surface features by name."""

from classifier.features.stray_text import tokenise
from classifier.features.surface_features import FEATURE_NAMES, surface_features


def named_features(text: str) -> dict[str, float]:
    """The features of `text` as a whole turn."""
    return dict(zip(FEATURE_NAMES, surface_features(text, tokenise(text), len(text)).tolist(), strict=True))
