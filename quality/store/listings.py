"""The lists of requests and of the quality loop, and their filters."""

from migrations.tables.api_objects import batches
from migrations.tables.audit import audit_events
from migrations.tables.quality import (
    VERIFICATION_FACETS,
    classifier_versions,
    experiments,
    retrain_runs,
    rollouts,
    verifications,
)
from migrations.tables.requests import REQUEST_FACETS, refused_requests, requests
from quality.store.facets import Facets
from quality.store.pages import Listing

# Users' texts are shown for one requested row at a time, never in lists.
REQUESTS = Listing(
    requests,
    "request_id",
    (*REQUEST_FACETS, "key_id"),
    hidden=("messages", "answer", "reasoning", "response_format"),
    facets=Facets(requests, "request_id", REQUEST_FACETS, owner="key_id"),
)
REFUSED = Listing(refused_requests, "refusal_id", ("key_id", "code"))
VERIFICATIONS = Listing(
    verifications,
    "verification_id",
    ("tier", "status", "label", "judge", "sampled_reason", "key_id"),
    hidden=("verifier_answer", "judged_answer", "turn", "tools_digest", "owner", "lease_until"),
    facets=Facets(verifications, "verification_id", VERIFICATION_FACETS, owner="key_id"),
)
ARTEFACTS = Listing(classifier_versions, "version", ("status",))
TRANSITIONS = Listing(audit_events, "audit_event_id", ("action", "actor"))
RETRAININGS = Listing(retrain_runs, "run_id", ("status", "trigger"), hidden=("owner", "lease_until"))
ROLLOUTS = Listing(rollouts, "rollout_id", ("status",))
BATCHES = Listing(
    batches, "batch_id", ("status", "key_id"), hidden=("owner", "lease_until", "traceparent", "output_seconds")
)
EXPERIMENTS = Listing(experiments, "experiment_id", ("status",))
