"""Worker processes on this machine: one torch thread each, started once and kept; data shared, not copied."""
