# SPDX-License-Identifier: MIT
"""A headless Chromium, driven through its DevTools protocol with the standard library alone.

The protocol runs over two pipes (--remote-debugging-pipe): messages are JSON, each ended by a NUL byte. Pointer and keys
are real events of the browser, not calls of scripts.
"""

import base64
import json
import os
import pathlib
import select
import shutil
import subprocess
import tempfile
import time

KEYS = {"Enter": (13, "\r"), "Escape": (27, ""), "Tab": (9, ""), " ": (32, " "), "Home": (36, ""), "End": (35, ""),
        "ArrowLeft": (37, ""), "ArrowUp": (38, ""), "ArrowRight": (39, ""), "ArrowDown": (40, "")}


def find_chromium():
    """The path of a Chromium, or None."""
    return next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


class Browser:
    """One browser with one page. Use it in a with statement."""

    def __init__(self, program, timeout=60):
        self.timeout = timeout
        self.number = 0
        self.events = []
        self.buffer = b""
        self.profile = tempfile.mkdtemp(prefix="heed-browser-")
        to_browser, self.write_end = os.pipe()
        self.read_end, from_browser = os.pipe()
        arguments = [program, "--headless=new", "--remote-debugging-pipe", f"--user-data-dir={self.profile}",
                     "--no-first-run", "--disable-gpu", "--disable-dev-shm-usage", "--disable-extensions",
                     "--disable-background-networking", "--hide-scrollbars", "--force-color-profile=srgb"]
        if os.geteuid() == 0:
            arguments.append("--no-sandbox")  # Chromium refuses to run as root with one

        def use_pipes():  # it reads from descriptor 3 and writes to 4
            source, target = os.dup(to_browser), os.dup(from_browser)
            os.dup2(source, 3)
            os.dup2(target, 4)

        self.process = subprocess.Popen(arguments, preexec_fn=use_pipes, pass_fds=(3, 4), stdin=subprocess.DEVNULL,
                                        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)
        os.close(to_browser)
        os.close(from_browser)
        self.session = None
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.call(f"{domain}.enable")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        try:
            self.session = None
            self.call("Browser.close")
            self.process.wait(10)
        except (OSError, RuntimeError, subprocess.TimeoutExpired):
            self.process.kill()
            self.process.wait()
        os.close(self.write_end)
        os.close(self.read_end)
        shutil.rmtree(self.profile, ignore_errors=True)

    # --- The protocol -------------------------------------------------------------------------------------------------

    def call(self, method, **parameters):
        self.number += 1
        message = {"id": self.number, "method": method, "params": parameters}
        if self.session:
            message["sessionId"] = self.session
        os.write(self.write_end, json.dumps(message).encode() + b"\0")
        deadline = time.monotonic() + self.timeout
        while True:
            answer = self.receive(deadline)
            if answer is None:
                raise RuntimeError(f"{method}: no answer within {self.timeout} s")
            if answer.get("id") != self.number:
                self.events.append(answer)
            elif "error" in answer:
                raise RuntimeError(f"{method}: {answer['error']['message']}")
            else:
                return answer["result"]

    def receive(self, deadline):
        while b"\0" not in self.buffer:
            if not select.select([self.read_end], [], [], max(0.0, deadline - time.monotonic()))[0]:
                return None
            part = os.read(self.read_end, 1 << 20)
            if not part:
                raise RuntimeError("the browser has ended")
            self.buffer += part
        message, self.buffer = self.buffer.split(b"\0", 1)
        return json.loads(message)

    # --- The page -----------------------------------------------------------------------------------------------------

    def open(self, path, width=1280, height=900, dark=False, scale=1):
        self.events.clear()
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=scale, mobile=False)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])
        self.show(path)
        self.wait_for("document.documentElement.dataset.ready === 'yes'")

    def show(self, path):
        url = pathlib.Path(path).resolve().as_uri()
        self.call("Page.navigate", url=url)
        self.wait_for(f"location.href === {json.dumps(url)} && document.readyState === 'complete'")

    def wait_for(self, condition):
        deadline = time.monotonic() + self.timeout
        while not self.evaluate(condition):
            if time.monotonic() > deadline:
                raise RuntimeError(f"{condition} did not become true; the page says: {self.complaints()}")
            time.sleep(0.02)

    def evaluate(self, expression):
        result = self.call("Runtime.evaluate", expression=expression, returnByValue=True)
        if "exceptionDetails" in result:
            raise RuntimeError(f"{expression}: {result['exceptionDetails']['exception'].get('description')}")
        return result["result"].get("value")

    def complaints(self):
        """Uncaught exceptions, and errors and warnings in the console."""
        found = []
        for event in self.events:
            if event.get("method") == "Runtime.exceptionThrown":
                found.append(event["params"]["exceptionDetails"]["exception"].get("description", "an exception"))
            elif event.get("method") == "Log.entryAdded" and event["params"]["entry"]["level"] in ("warning", "error"):
                found.append(event["params"]["entry"]["text"])
        return found

    def requests(self):
        """What was loaded from elsewhere than the page itself."""
        return [event["params"]["request"]["url"] for event in self.events
                if event.get("method") == "Network.requestWillBeSent"]

    def center(self, selector, fraction=(0.5, 0.5)):
        box = self.evaluate(f"""(() => {{
          const element = document.querySelector({json.dumps(selector)});
          element.scrollIntoView({{block: "nearest", inline: "nearest"}});
          const box = element.getBoundingClientRect();
          return [box.left, box.top, box.width, box.height];
        }})()""")
        return box[0] + box[2] * fraction[0], box[1] + box[3] * fraction[1]

    def move(self, x, y):
        self.call("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)

    def hover(self, selector, fraction=(0.5, 0.5)):
        self.move(*self.center(selector, fraction))

    def click(self, selector, fraction=(0.5, 0.5)):
        x, y = self.center(selector, fraction)
        self.move(x, y)
        for kind in ("mousePressed", "mouseReleased"):
            self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)

    def press(self, key):
        code, text = KEYS[key]
        for kind in ("keyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", type=kind, key=key, windowsVirtualKeyCode=code,
                      **({"text": text} if text and kind == "keyDown" else {}))

    def screenshot(self, path, whole=False):
        image = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=whole)
        pathlib.Path(path).write_bytes(base64.b64decode(image["data"]))
