"""From which novelty on a prompt is too far from verified experience, and which tier is safe then."""

from classifier.manifest import Manifest, NoveltyFallback

# By the meaning of novelty, two in a hundred prompts like those of the training data are as novel as this.
USUAL_THRESHOLD = 0.98


def fallback_of(manifest: Manifest) -> NoveltyFallback:
    """What the artefact was measured with, or the usual: the strongest tier for the most novel 2%."""
    return manifest.fallback or NoveltyFallback(threshold=USUAL_THRESHOLD, tier=manifest.tiers)
