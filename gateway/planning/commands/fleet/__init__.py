"""`aio fleet`: simulate scaling rules on recorded traces, and serve the target that a cluster's autoscaler reads."""

from gateway.operations.cli.group import LazyGroup

fleet = LazyGroup(
    name="fleet",
    help="Predictive scaling of replicas.",
    commands={
        "simulate": ("gateway.planning.commands.fleet.simulate:simulate", "Compare scaling rules on recorded traces."),
        "serve": ("gateway.planning.commands.fleet.serve:serve", "Serve the target that a cluster's autoscaler reads."),
        "split": (
            "gateway.planning.commands.fleet.split:split",
            "Compare separate prefill and decode pools with combined ones.",
        ),
    },
)
