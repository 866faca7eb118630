"""A Ray cluster of one trusted organisation: the same run on several machines. Nothing here imports ray before it is asked for."""
