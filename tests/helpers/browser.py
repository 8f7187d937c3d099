"""A headless browser that stays open: its page changes, and is looked at while it does.

The browser is driven by its DevTools protocol over two pipes (``--remote-debugging-pipe``): messages of JSON that end
with a null byte.
"""

from __future__ import annotations

import base64
import json
import os
import subprocess
import time
from pathlib import Path
from typing import Any, Self

from helpers.pages import BROWSER

_FLAGS = (
    "headless=new no-sandbox disable-gpu disable-quic no-first-run disable-background-networking "
    "disable-component-update disable-sync remote-debugging-pipe"
)
_LIMIT = 120.0
#: Is kept once a page, and what it does when it is loaded, are there.
_LOADED = """new Promise(done => document.readyState === "complete"
  ? setTimeout(done) : addEventListener("load", () => setTimeout(done)))"""


class Browser:
    """One page in a browser of its own."""

    def __init__(self, profile: Path) -> None:
        reading, far_end = os.pipe()
        near_end, writing = os.pipe()
        # The browser reads commands from descriptor 3 and writes to 4.
        command = f'exec "$0" "$@" 3<&{near_end} 4>&{far_end}'
        flags = [f"--{flag}" for flag in _FLAGS.split()]
        self._process = subprocess.Popen(
            ["bash", "-c", command, BROWSER, *flags, f"--user-data-dir={profile}", "about:blank"],
            pass_fds=(near_end, far_end),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(near_end)
        os.close(far_end)
        self._commands, self._answers = os.fdopen(writing, "wb", 0), os.fdopen(reading, "rb", 0)
        self._number, self._rest, self._session = 0, b"", ""
        #: Errors and messages that the page has written to its console.
        self.console: list[str] = []
        target = self._call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self._call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log"):
            self._call(f"{domain}.enable")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._commands.close()
        self._answers.close()
        self._process.kill()
        self._process.wait()

    def _call(self, method: str, **parameters: Any) -> dict[str, Any]:
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        self._commands.write(json.dumps(message).encode() + b"\0")
        while True:
            answer = self._next()
            if answer.get("method") == "Runtime.exceptionThrown":
                self.console.append(json.dumps(answer["params"]))
            elif answer.get("method") == "Log.entryAdded":
                self.console.append(answer["params"]["entry"]["text"])
            elif answer.get("method") == "Runtime.consoleAPICalled":
                self.console.append(" ".join(str(one.get("value")) for one in answer["params"]["args"]))
            if answer.get("id") == self._number:
                assert "error" not in answer, answer
                return answer["result"]

    def _next(self) -> dict[str, Any]:
        while b"\0" not in self._rest:
            data = self._answers.read(1 << 16)
            assert data, "the browser has ended"
            self._rest += data
        line, _, self._rest = self._rest.partition(b"\0")
        return json.loads(line)

    def open(self, address: str, width: int = 1200, scheme: str = "light") -> None:
        """Open a page in a window of this width, light or dark."""
        self._call("Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=False)
        self._call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
        self._call("Page.navigate", url=address)

    def load(self, address: str, width: int = 1200, before: str = "") -> None:
        """Open a page with an empty console, and wait until all of it is loaded; a script may run before its own."""
        self.console.clear()
        script = self._call("Page.addScriptToEvaluateOnNewDocument", source=before)["identifier"]
        self.open(address, width)
        self.value(_LOADED)
        self._call("Page.removeScriptToEvaluateOnNewDocument", identifier=script)

    def value(self, expression: str) -> Any:
        """Return the value of an expression in the page, or that of its promise."""
        found = self._call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    def text(self) -> str:
        """Return the text that the page shows."""
        return self.value("document.body?.innerText") or ""

    def until(self, words: str, seconds: float = _LIMIT) -> str:
        """Wait until the page shows some words; return its text."""
        end = time.monotonic() + seconds
        while words not in (found := self.text()):
            assert time.monotonic() < end, f"{words!r} is not in: {found}"
            time.sleep(0.1)
        return found

    def until_value(self, expression: str, wanted: Any, seconds: float = _LIMIT) -> None:
        """Wait until an expression in the page has a value."""
        end = time.monotonic() + seconds
        while (found := self.value(expression)) != wanted:
            assert time.monotonic() < end, f"{expression} is {found!r}, not {wanted!r}"
            time.sleep(0.1)

    def picture(self, path: Path) -> None:
        """Save a picture of the whole page."""
        data = self._call("Page.captureScreenshot", captureBeyondViewport=True)["data"]
        path.write_bytes(base64.b64decode(data))
