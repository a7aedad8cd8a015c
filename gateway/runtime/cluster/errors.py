"""Errors of a cluster, one type per action that the operator can take."""


class ClusterError(RuntimeError):
    """The cluster is unreachable or failed to do something; the message says what to check."""


class NoRoomError(ClusterError):
    """No node of the cluster can hold a replica; the message names the constraint. Add or free nodes."""
