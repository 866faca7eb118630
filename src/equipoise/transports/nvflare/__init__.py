"""A network of organisations on NVIDIA FLARE: keys, kits, party commands and the transport.

Modules of this package import nvflare on first use.
"""
