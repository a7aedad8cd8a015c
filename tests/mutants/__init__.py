"""Mutation testing: which small faults in the code no test notices."""
