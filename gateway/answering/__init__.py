"""From an Ask to an Answer: generation, escalation, fall-over, overload, the bill."""
