"""P(tier k's answer is no worse than the strongest tier's), calibrated, and the policy over it.

Serving code here runs on numpy alone; scikit-learn and scipy are imported only by `classifier.training`.
"""
