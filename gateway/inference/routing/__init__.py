"""From a request to a decision: the router, its knobs, and the loaded artefacts."""
