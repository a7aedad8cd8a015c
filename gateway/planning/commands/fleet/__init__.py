"""`aio fleet`: predictive scaling of a cluster."""

from gateway.operations.cli.group import LazyGroup

fleet = LazyGroup(
    name="fleet",
    help="Predictive scaling of replicas.",
    commands={
        "serve": ("gateway.planning.commands.fleet.serve:serve", "Serve the target that a cluster's autoscaler reads."),
    },
)
