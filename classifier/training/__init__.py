"""Training and retraining of artefacts; scikit-learn and scipy are imported only here."""
