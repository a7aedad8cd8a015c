"""Judge a trained version, put it on trial, promote it, watch it, and roll it back."""
