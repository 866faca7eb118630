"""Worker processes on this machine, with one torch thread each; data are shared, not copied."""
