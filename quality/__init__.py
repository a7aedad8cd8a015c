"""Record, sample, verify, label, retrain, promote: the feedback loop behind routing."""
