"""The fallback that an artefact recommends for novel prompts: from which novelty on, and to which tier at least."""

import numpy as np

from classifier.manifest import NoveltyFallback
from classifier.outcome_model import Outcomes

# Of the held-out rows of known domains this share falls back, for nothing: what the fallback may cost. On unseen
# domains falling back more often bought no measurable quality, only the strongest tier's price.
FALSE_ALARMS = 0.02


def fitted_fallback(found: Outcomes, tiers: int) -> NoveltyFallback:
    """The threshold that two in a hundred of the held-out rows, predicted as `found`, reach, and the strongest tier.

    How cheaper tiers did on the most novel rows of known domains says nothing about a domain that nobody has seen, so
    none of them is shown to be safe there.
    """
    threshold = float(np.quantile(found.novelty, 1 - FALSE_ALARMS, method="higher"))
    return NoveltyFallback(threshold=round(threshold, 4), tier=tiers)
