"""What can go wrong with a cluster, one type per thing that the operator can do about it."""


class ClusterError(RuntimeError):
    """The cluster cannot be reached, or does not do what it was asked; the message says what to look at."""


class NoRoomError(ClusterError):
    """No place in the cluster holds what is to be served; the message names the constraint. Add or free nodes."""
