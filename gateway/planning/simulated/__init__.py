"""A replica in virtual time, planned by the scheduler of the core."""
