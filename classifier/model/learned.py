"""What a retraining learned of all prompts and that replaces the table by class: one level of `Manifest.levels`."""

from classifier.model.catalogue_head import CatalogueHead, Tensors
from classifier.model.class_refit import RefittedClasses

# Either gives P(as good) by tier, and one tenant moves it by at most `classifier.local.tenant_cells.LABELS_BOUND`.
LearnedHead = CatalogueHead | RefittedClasses


def learned_head(tensors: Tensors) -> LearnedHead | None:
    """Rebuild what was learned; None where nothing was. Raises KeyError or ValueError for tensors that do not fit, or
    for two of them."""
    head, refitted = CatalogueHead.from_tensors(tensors), RefittedClasses.from_tensors(tensors)
    if head is not None and refitted is not None:
        raise ValueError("it has a head over all keys and refitted classes, of which one decides")
    return refitted if head is None else head
