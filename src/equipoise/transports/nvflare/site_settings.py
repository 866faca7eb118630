"""Settings of a site, from the file that its operator writes (stand-in until merged)."""

from __future__ import annotations

from equipoise.site import SiteSettings
from equipoise.transports.nvflare.kits import Kit
from equipoise.validation import safe_yaml
from pathlib import Path


def site_settings(kit: Kit) -> SiteSettings:
    values = safe_yaml.read(kit.folder / "local" / "equipoise.yaml")
    return SiteSettings(Path(values["data"]), kit.folder / "states")
