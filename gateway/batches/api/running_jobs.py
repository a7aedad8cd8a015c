"""The files and batches of the app that serves a request."""

from gateway.batches.jobs import Jobs
from gateway.edge.http_request import HttpRequest

JOBS = "jobs"
"""The key of the app's state."""


def jobs_of(request: HttpRequest) -> Jobs:
    """Return the jobs of the app that serves `request`."""
    jobs: Jobs = request.app.state[JOBS]
    return jobs
