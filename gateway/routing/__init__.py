"""From an Ask to a Decision: the router, its knobs, and the artefacts in force."""
