"""Training, retraining and evaluation of the outcome model; scikit-learn and scipy are imported only here."""
