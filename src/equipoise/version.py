"""The version of this package: below everything, since runs and jobs name it."""

__version__ = "0.2.0"
