"""A run in motion: the loop over rounds, the cohort of a round, and all measuring."""
