"""`aio quality`: whether a smaller model is good enough to serve, and how far judges can be trusted."""

from gateway.cli.group import LazyGroup

quality = LazyGroup(
    name="quality",
    help="Measure models, and the judges of their answers.",
    package="gateway.cli.quality",
    commands={
        "compare": (".compare:compare", "Compare a quantised model with full precision."),
        "experiments": (".experiments:experiments", "Run A/B experiments with two versions or tiers."),
        "calibrate": (".calibrate:calibrate", "Measure how far each judge can be trusted."),
    },
)
