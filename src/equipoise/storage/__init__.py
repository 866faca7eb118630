"""A run on disk: its tables and files, and why a kill loses nothing."""
