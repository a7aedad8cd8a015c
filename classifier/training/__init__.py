"""Train and retrain artefacts; scikit-learn and scipy are imported only here, and by no part that retraining needs."""
