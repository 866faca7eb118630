"""A real Chromium, driven over its debugging pipe: no driver, no network, nothing but the standard
library.
"""

from __future__ import annotations

import base64
import json
import os
import select
import shutil
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
    "--remote-debugging-pipe",
)
SECONDS = 60.0
INSTALL_SECONDS = 600


def find_chromium() -> str | None:
    """The browser's path; Debian's package is installed where that is possible and permitted, None
    if there is none.
    """
    for name in ("chromium", "chromium-browser", "google-chrome"):
        if found := shutil.which(name):
            return found
    if os.geteuid() == 0 and shutil.which("apt-get"):
        command = ["apt-get", "install", "-y", "-q", "--no-install-recommends", "chromium"]
        subprocess.run(
            command,
            capture_output=True,
            timeout=INSTALL_SECONDS,
            check=False,
            env=os.environ | {"DEBIAN_FRONTEND": "noninteractive"},
        )
    return shutil.which("chromium")


class Browser:
    """One page in one browser."""

    def __init__(self, program: str) -> None:
        self.profile = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        to_read, self.writes = os.pipe()
        self.reads, to_write = os.pipe()

        def place() -> None:  # Chromium reads commands from descriptor 3 and answers on 4
            first, second = os.dup(to_read), os.dup(to_write)
            os.dup2(first, 3)
            os.dup2(second, 4)

        self.process = subprocess.Popen(
            [program, *FLAGS, f"--user-data-dir={self.profile.name}", "about:blank"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            close_fds=False,
            preexec_fn=place,
            start_new_session=True,
        )
        os.close(to_read)
        os.close(to_write)
        self.rest, self.number, self.session, self.events = b"", 0, "", []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.call("Target.attachToTarget", targetId=target, flatten=True)[
            "sessionId"
        ]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        self.number += 1
        message = {"id": self.number, "method": method, "params": parameters} | (
            {"sessionId": self.session} if self.session else {}
        )
        os.write(self.writes, json.dumps(message).encode() + b"\0")
        end = time.monotonic() + SECONDS
        while True:
            answer = self._next(end)
            if answer.get("id") == self.number:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']}")
                return answer["result"]

    def _next(self, end: float) -> dict[str, Any]:
        while b"\0" not in self.rest:
            if not select.select([self.reads], [], [], max(0.0, end - time.monotonic()))[0]:
                raise TimeoutError("the browser does not answer")
            self.rest += os.read(self.reads, 1 << 20)
        line, _, self.rest = self.rest.partition(b"\0")
        message = json.loads(line)
        if "method" in message:
            self.events.append(message)
        return message

    def open(self, page: Path | str, width: int = 1200, height: int = 900) -> None:
        """Show a file, or what an address leads to."""
        phone = width < 600
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=phone,
        )
        self.events.clear()
        self.call("Page.navigate", url=page if isinstance(page, str) else page.as_uri())
        end = time.monotonic() + SECONDS
        while not any(event["method"] == "Page.loadEventFired" for event in self.events):
            self._next(end)

    def run(self, script: str) -> Any:
        answer = self.call(
            "Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True
        )
        if "exceptionDetails" in answer:
            raise RuntimeError(
                answer["exceptionDetails"]["exception"].get("description", "the script failed")
            )
        return answer["result"].get("value")

    def complaints(self) -> list[str]:
        """Errors and warnings that the page caused since it was opened."""
        found = [
            e["params"]["exceptionDetails"]["text"]
            for e in self.events
            if e["method"] == "Runtime.exceptionThrown"
        ]
        found += [
            str(e["params"]["args"])
            for e in self.events
            if e["method"] == "Runtime.consoleAPICalled"
            and e["params"]["type"] in ("error", "warning")
        ]
        return found + [
            e["params"]["entry"]["text"]
            for e in self.events
            if e["method"] == "Log.entryAdded"
            and e["params"]["entry"]["level"] in ("error", "warning")
        ]

    def requested(self) -> list[str]:
        """Return the addresses that the page requested, except its own and inline data."""
        urls = [
            e["params"]["request"]["url"]
            for e in self.events
            if e["method"] == "Network.requestWillBeSent"
        ]
        return [url for url in urls if not url.startswith(("file:", "data:"))]

    def screenshot(self, path: Path, whole: bool = True) -> None:
        data = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=whole)[
            "data"
        ]
        path.write_bytes(base64.b64decode(data))

    def printed(self) -> bytes:
        return base64.b64decode(
            self.call("Page.printToPDF", paperWidth=8.27, paperHeight=11.69)["data"]
        )

    def close(self) -> None:
        try:
            self.session = ""
            self.call("Browser.close")
            self.process.wait(10)
        except (OSError, TimeoutError, RuntimeError, subprocess.TimeoutExpired):
            self.process.kill()
            self.process.wait(10)
        os.close(self.writes)
        os.close(self.reads)
        self.profile.cleanup()
