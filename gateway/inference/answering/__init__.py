"""From a request and a decision to an answer: generation, escalation, fall-over, the bill."""
