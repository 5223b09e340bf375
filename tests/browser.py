"""A real browser without a screen, driven by the Chrome DevTools Protocol."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any

import websocket

_STARTS_S = 120.0
_PATIENCE_S = 60.0
_ADDRESS = re.compile(r"DevTools listening on (ws://\S+)")


class BrowserError(AssertionError):
    """The page did not do what was asked, or did not come to look as awaited."""


class Page:
    """One page of the browser."""

    def __init__(self, connection: websocket.WebSocket) -> None:
        self._connection = connection
        self._number = 0
        self._session: str | None = None
        target = self.command("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.command("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        self.complaints: list[str] = []
        """What the console says of errors, and what the page's policy has forbidden."""
        self.command("Runtime.enable")
        self.command("Log.enable")
        self.command("Page.enable")

    def open(self, url: str) -> None:
        """Go there."""
        self.command("Page.navigate", url=url)

    def prefer(self, scheme: str) -> None:
        """Let the user prefer `light` or `dark`."""
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        self.command("Emulation.setEmulatedMedia", features=features)

    def value(self, expression: str) -> Any:
        """What a JavaScript expression gives there; a promise is awaited."""
        answer = self.command(
            "Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True
        )
        if "exceptionDetails" in answer:
            raise BrowserError(f"{expression}: {answer['exceptionDetails']}")
        return answer["result"].get("value")

    def wait_for(self, expression: str) -> None:
        """Wait until an expression is true; it is evaluated again after every change of the page."""
        script = f"""new Promise((done) => {{
            const look = () => {{ let found; try {{ found = {expression}; }} catch {{ return; }}
                if (found) {{ observer.disconnect(); clearTimeout(end); done(true); }} }};
            const observer = new MutationObserver(look);
            const end = setTimeout(() => {{ observer.disconnect(); done(false); }}, {_PATIENCE_S * 1000});
            observer.observe(document, {{subtree: true, childList: true, attributes: true, characterData: true}});
            look();
        }})"""
        if not self.value(script):
            text = self.value("document.body.innerText")
            raise BrowserError(f"never came true: {expression}\n{text}\n{self.complaints}")

    def command(self, method: str, **parameters: Any) -> Any:
        """Send a command of the protocol, and give its result."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters}
        if self._session is not None:
            message["sessionId"] = self._session
        self._connection.send(json.dumps(message))
        while True:
            answer = json.loads(self._connection.recv())
            if answer.get("id") == self._number:
                if "error" in answer:
                    raise BrowserError(f"{method}: {answer['error']}")
                return answer["result"]
            self._note(answer)

    def _note(self, event: dict[str, Any]) -> None:
        parameters = event.get("params", {})
        if event.get("method") == "Log.entryAdded" and parameters["entry"]["level"] == "error":
            self.complaints.append(parameters["entry"]["text"])
        if event.get("method") == "Runtime.exceptionThrown":
            self.complaints.append(json.dumps(parameters["exceptionDetails"]))


@contextmanager
def browser(program: str, directory: Path) -> Iterator[Page]:
    """A page of a browser that runs until the block ends; its profile and log go into `directory`."""
    log = directory / "browser.log"
    options = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run"]
    options += ["--remote-debugging-port=0", f"--user-data-dir={directory / 'profile'}", "about:blank"]
    with log.open("wb") as out:
        # Debian's program is a shell script that waits for the browser: a session of its own lets both be ended.
        process = subprocess.Popen([program, *options], stdout=out, stderr=out, start_new_session=True)
    try:
        address = _address(log, process)
        # Chromium refuses connections that say they come from a web page.
        connection = websocket.create_connection(
            address, timeout=_PATIENCE_S + 15, suppress_origin=True, max_size=None
        )
        with closing(connection):
            yield Page(connection)
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _address(log: Path, process: subprocess.Popen[bytes]) -> str:
    deadline = time.monotonic() + _STARTS_S
    while time.monotonic() < deadline and process.poll() is None:
        found = _ADDRESS.search(log.read_text(errors="replace"))
        if found:
            return found[1]
        time.sleep(0.02)
    raise BrowserError(f"the browser did not start: {log.read_text(errors='replace')[-2000:]}")
