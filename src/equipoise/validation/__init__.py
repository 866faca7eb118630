"""Validation of what comes from outside: names, YAML, code that a file names, arrays, texts."""
