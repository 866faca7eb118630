"""A site of a network: its own data, states, settings and log, behind messages of bytes."""

from equipoise.site.settings import SiteSettings
from equipoise.site.site import Site

__all__ = ["Site", "SiteSettings"]
