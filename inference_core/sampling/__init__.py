"""Drawing tokens: the sampler, its reference in numpy, rejection sampling for drafts."""
