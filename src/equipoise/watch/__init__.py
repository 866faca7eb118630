"""Runs looked at in a browser while they go on: the report's page, kept up to date, and a gallery of a folder of runs. Nothing is written."""
