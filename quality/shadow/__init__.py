"""What observe mode tells a buyer: what routing would have cost, and how good its answers would have been."""
