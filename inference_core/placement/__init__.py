"""Which devices a model goes on and how it is divided over them: arithmetic with reasons, no torch."""
