# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Pictures of a run in TensorBoard, as a real browser shows it.

    python docs/screenshots/take.py LOGDIR OUTDIR [--pages custom_scalars scalars text hparams]

Starts TensorBoard on LOGDIR (a loopback port), opens each page in Debian's chromium (``apt-get install chromium``; no
dependency of gravac), waits until the page stands still and writes ``OUTDIR/<page>.png``. Standard library only:
chromium is driven by the DevTools protocol over a pipe.
"""

import argparse
import base64
import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator
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
    "--hide-scrollbars",
    "--remote-debugging-pipe",
)

CURVES = "gravac/(cf$|gain$|gain_of|t_|wire_ratio$|seconds/step)"

PAGES = {
    "custom_scalars": ("?smoothing=0#custom_scalars&_smoothingWeight=0", 1500),
    "scalars": ("?smoothing=0&tagFilter=" + urllib.parse.quote(CURVES) + "#timeseries", 1500),
    "text": ("#text", 1500),
    "hparams": ("#hparams", 2000),
}
"""Address below TensorBoard's, and width of the window in pixels."""

HEIGHTS = (700, 2400)
"""Lowest and highest window in pixels; it is as high as what the page holds."""

MARGIN = 40
"""Pixels below the last thing that a page holds."""

ALL = """
const all = (root) => [...root.querySelectorAll("*")].flatMap((e) => e.shadowRoot ? [e, ...all(e.shadowRoot)] : [e]);
"""
CLICKS = (
    ALL
    + """
const ticked = (e) => e.matches("mat-checkbox.mat-mdc-checkbox-checked") || (e.matches("paper-checkbox") && e.checked);
const outliers = (e) => ticked(e) && e.textContent.includes("Ignore outliers");
const legend = (e) => e.matches(".toggle-matches-button") && e.icon != "expand-less";
const settings = (e) => e.matches("button[title='Close side pane'],button[aria-label='Close side pane']");
for (const wanted of [outliers, legend, settings])
  all(document).filter(wanted).forEach((e) => (e.querySelector("input") || e).click());
"""
)
"""What a reader would click first: show whole curves, open each chart's legend, close the pane of settings."""

BOTTOM = (
    ALL
    + """
const above = (e) => e.assignedSlot || e.parentElement || e.getRootNode().host;
const shown = (e) => {
  const box = e.getBoundingClientRect();
  let bottom = box.width && box.height && box.height < innerHeight / 2 ? box.bottom : 0;
  for (let outer = above(e); outer; outer = above(outer))
    if (getComputedStyle(outer).overflowY != "visible") bottom = Math.min(bottom, outer.getBoundingClientRect().bottom);
  return bottom > box.top ? bottom : 0;
};
const ends = (e) => e.matches("svg,canvas,input") || (!e.children.length && !e.shadowRoot && e.textContent.trim());
const seen = (e) => e.checkVisibility({opacityProperty: true, visibilityProperty: true});
Math.ceil(Math.max(...all(document).filter((e) => ends(e) && seen(e)).map(shown)));
"""
)
"""Where the lowest text, chart or input that can be seen ends, in pixels from the window's top; what is as high as that
is a background."""


class Browser:
    """A headless chromium with one tab.

    Raises:
        SystemExit: no chromium on this machine.
    """

    def __init__(self, profile: str) -> None:
        path = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
        if path is None:
            sys.exit("no chromium found: apt-get install chromium")
        read_commands, write_commands = os.pipe()
        read_answers, write_answers = os.pipe()
        argv = [path, *FLAGS, f"--user-data-dir={profile}", "about:blank"]
        log = os.path.join(profile, "stderr.txt")  # chatter about a missing D-Bus and the like
        files = (
            (os.POSIX_SPAWN_DUP2, read_commands, 3),
            (os.POSIX_SPAWN_DUP2, write_answers, 4),
            (os.POSIX_SPAWN_OPEN, 2, log, os.O_WRONLY | os.O_CREAT, 0o600),
        )
        self._pid = os.posix_spawn(path, argv, os.environ, file_actions=files, setpgroup=0)
        os.close(read_commands)
        os.close(write_answers)
        self._commands, self._answers = os.fdopen(write_commands, "wb"), os.fdopen(read_answers, "rb")
        self._sent = 0
        self._session: str | None = None
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Send one command of the DevTools protocol and return its result; events in between are dropped."""
        self._sent += 1
        message = {"id": self._sent, "method": method, "params": parameters}
        if self._session is not None:
            message["sessionId"] = self._session
        self._commands.write(json.dumps(message).encode() + b"\0")
        self._commands.flush()
        while True:
            answer = json.loads(self._next())
            if answer.get("id") == self._sent:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']['message']}")
                result: dict[str, Any] = answer["result"]
                return result

    def size(self, width: int, height: int) -> None:
        """Make the window that many pixels wide and high."""
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)

    def run(self, script: str) -> Any:
        """The value of the script's last expression."""
        return self.call("Runtime.evaluate", expression="{" + script + "}")["result"].get("value")

    def show(self, address: str) -> None:
        """Open a page."""
        self.call("Page.navigate", url="about:blank")  # a change of the fragment alone would not load anew
        self.call("Page.navigate", url=address)

    def picture(self) -> bytes:
        """What the window shows now, as PNG."""
        return base64.b64decode(self.call("Page.captureScreenshot", format="png")["data"])

    def close(self) -> None:
        """End chromium and its children."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._pid, signal.SIGKILL)
        os.waitpid(self._pid, 0)
        self._answers.close()
        with contextlib.suppress(BrokenPipeError):
            self._commands.close()

    def _next(self) -> bytes:
        message = bytearray()
        while (byte := self._answers.read(1)) != b"\0":
            if not byte:
                raise RuntimeError("chromium ended")
            message += byte
        return bytes(message)


def picture(browser: Browser, address: str, width: int) -> bytes:
    """The whole page, once it shows everything."""
    browser.size(width, HEIGHTS[0])
    browser.show(address)
    settled(browser)
    for height in HEIGHTS:  # again where all is in the window: what comes late has not been clicked
        browser.size(width, height)
        browser.run(CLICKS)
        settled(browser)
    browser.size(width, max(HEIGHTS[0], min(HEIGHTS[1], int(browser.run(BOTTOM)) + MARGIN)))
    return settled(browser)


def settled(browser: Browser, least: float = 1.0, still: float = 2.0, most: float = 30.0) -> bytes:
    """The picture once it has not changed for ``still`` seconds, or ``most`` seconds have passed."""
    start = time.monotonic()
    time.sleep(least)
    last, since = browser.picture(), time.monotonic()
    while (now := time.monotonic()) < min(since + still, start + most):
        time.sleep(0.25)
        current = browser.picture()
        if current != last:
            last, since = current, now
    return last


@contextlib.contextmanager
def tensorboard(log_dir: Path) -> Iterator[str]:
    """TensorBoard's address, once it has read scalars from ``log_dir``."""
    command = [sys.executable, "-m", "tensorboard.main", "--logdir", str(log_dir), "--host", "127.0.0.1", "--port", "0"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stderr is not None
            found = None
            while found is None:
                line = process.stderr.readline()
                if not line:
                    sys.exit("TensorBoard did not start: is tensorboard installed here?")
                found = re.search(r"http://127\.0\.0\.1:\d+/", line)
            for _ in range(120):
                with urllib.request.urlopen(found[0] + "data/plugin/scalars/tags") as answer:
                    if any(json.load(answer).values()):
                        break
                time.sleep(0.25)
            else:
                sys.exit(f"no scalars in {str(log_dir)!r} after 30 seconds")
            yield found[0]
        finally:
            process.terminate()


def main() -> None:
    """Take the pictures asked for."""
    parser = argparse.ArgumentParser(description="Pictures of a run in TensorBoard, taken with chromium.")
    parser.add_argument("logdir", type=Path, help="folder given to tensorboard --logdir")
    parser.add_argument("outdir", type=Path, help="folder for the PNG files")
    parser.add_argument("--pages", nargs="+", choices=PAGES, default=list(PAGES), help="default: all")
    given = parser.parse_args()
    given.outdir.mkdir(parents=True, exist_ok=True)
    with tensorboard(given.logdir) as address, tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        browser = Browser(profile)
        try:
            for page in given.pages:
                path, width = PAGES[page]
                file = given.outdir / f"{page}.png"
                file.write_bytes(picture(browser, address + path, width))
                print(file)
        finally:
            browser.close()


if __name__ == "__main__":
    main()
