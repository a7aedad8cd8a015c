"""`aio quality`: whether a smaller model is good enough to serve."""

from gateway.cli.group import LazyGroup

quality = LazyGroup(
    name="quality",
    help="Measure what a quantised model has lost.",
    commands={"compare": ("gateway.cli.quality_compare:compare", "A quantised model against full precision.")},
)
