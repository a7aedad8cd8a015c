"""The source of what was learned for each key: labels for the serving version at the active target."""

from gateway.inference.routing.label_source import label_source
from gateway.inference.service import Serving
from gateway.operations.usecases.routing_views import active_version, rule_at
from quality.learning.learning import LabelSource


def learning_source(serving: Serving) -> LabelSource:
    """Return the source for the serving version at the active target. Raises `ApiError` 409 without one."""
    target = rule_at(serving, serving.routing.active_target).quality_target
    version, catalog = active_version(serving), serving.routing.served.catalog
    return label_source(version.model, catalog, serving.settings.data_path, target)
