"""One core: which sequences a step computes and commits, what is guessed ahead of it (SPEC SD rows), and what runs,
tunes and reports it."""
