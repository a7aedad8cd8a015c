"""`aio fleet`: simulate scaling rules on recorded traces, and serve the target that a cluster's autoscaler reads."""

from gateway.cli.group import LazyGroup

fleet = LazyGroup(
    name="fleet",
    help="Predictive scaling of replicas.",
    commands={
        "simulate": ("gateway.cli.fleet.simulate:simulate", "Compare scaling rules on recorded traces."),
        "serve": ("gateway.cli.fleet.serve:serve", "Serve the target that a cluster's autoscaler reads."),
        "split": ("gateway.cli.fleet.split:split", "Compare separate prefill and decode pools with combined ones."),
    },
)
