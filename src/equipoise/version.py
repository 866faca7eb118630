"""The version of this package: below everything, since runs and jobs name it."""

__version__ = "1.0.0rc1"
