"""P(tier k's answer is no worse than the strongest tier's), calibrated, and the routing policy that uses it.

Serving code needs only numpy; scikit-learn and scipy are imported only by `classifier.training`.
"""
