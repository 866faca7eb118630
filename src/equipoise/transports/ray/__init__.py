"""A Ray cluster of one trusted organisation: the same run on several machines.

Modules of this package import ray on first use.
"""
