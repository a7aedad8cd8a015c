"""`aio quality`: whether a smaller model is good enough to serve, and how far judges of answers can be trusted."""

from gateway.cli.group import LazyGroup

quality = LazyGroup(
    name="quality",
    help="Measure models, and the judges of their answers.",
    commands={
        "compare": ("gateway.cli.quality.compare:compare", "A quantised model against full precision."),
        "experiments": ("gateway.cli.quality.experiments:experiments", "Two versions or tiers, side by side."),
        "calibrate": ("gateway.cli.quality.calibrate:calibrate", "How far each judge can be trusted here."),
    },
)
