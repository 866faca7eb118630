"""Runs over a real network, carried by NVIDIA FLARE."""
