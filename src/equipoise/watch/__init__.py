"""Runs in a browser while they are in progress: a page that updates itself, and a gallery of runs.

Nothing is written.
"""
