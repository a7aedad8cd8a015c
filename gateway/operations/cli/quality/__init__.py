"""`aio quality`: whether a smaller model is good enough to serve, and how far judges can be trusted."""

from gateway.operations.cli.group import LazyGroup

quality = LazyGroup(
    name="quality",
    help="Measure models, and the judges of their answers.",
    commands={
        "compare": ("gateway.operations.cli.quality.compare:compare", "Compare a quantised model with full precision."),
        "experiments": (
            "gateway.operations.cli.quality.experiments:experiments",
            "A/B experiments of two versions or tiers.",
        ),
        "calibrate": (
            "gateway.operations.cli.quality.calibrate:calibrate",
            "Measure how far each judge can be trusted.",
        ),
    },
)
