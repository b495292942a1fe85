"""A headless Chromium, driven over its debugging pipe: nothing but the standard library is needed."""
import base64
import json
import os
import shutil
import subprocess
import tempfile
import time

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")


def find_browser():
    """Path of a browser, or None."""
    return next((path for path in map(shutil.which, NAMES) if path), None)


class Browser:
    """One page. Without network: any host name is unknown to it."""

    def __init__(self, program):
        self.profile = tempfile.TemporaryDirectory(prefix="browser-", ignore_cleanup_errors=True)
        to_browser, self.write_end = os.pipe()
        self.read_end, from_browser = os.pipe()

        def put_in_place():  # it reads commands from 3 and answers on 4
            high = os.dup(from_browser), os.dup(to_browser)
            os.dup2(high[1], 3)
            os.dup2(high[0], 4)

        self.process = subprocess.Popen(
            [program, "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run",
             "--remote-debugging-pipe", f"--user-data-dir={self.profile.name}", "--host-resolver-rules=MAP * ~NOTFOUND",
             "--disable-background-networking", "--force-color-profile=srgb", "about:blank"],
            preexec_fn=put_in_place, pass_fds=(3, 4), stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL)
        os.close(to_browser)
        os.close(from_browser)
        self.number, self.unread, self.session, self.events = 0, b"", None, []
        target = next(t for t in self.call("Target.getTargets")["targetInfos"] if t["type"] == "page")
        self.session = self.call("Target.attachToTarget", targetId=target["targetId"], flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def call(self, method, **parameters):
        self.number += 1
        message = {"id": self.number, "method": method, "params": parameters}
        if self.session:
            message["sessionId"] = self.session
        os.write(self.write_end, json.dumps(message).encode() + b"\0")
        while True:
            answer = self.receive()
            if answer.get("id") == self.number:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']}")
                return answer["result"]
            self.events.append(answer)

    def receive(self):
        while b"\0" not in self.unread:
            piece = os.read(self.read_end, 1 << 20)
            if not piece:
                raise RuntimeError("the browser has ended")
            self.unread += piece
        message, self.unread = self.unread.split(b"\0", 1)
        return json.loads(message)

    def open(self, file, width, height, phone=False, dark=False):
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=2 if phone else 1,
                  mobile=phone)
        self.call("Emulation.setTouchEmulationEnabled", enabled=phone)
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme",
                                                           "value": "dark" if dark else "light"}])
        self.events.clear()
        self.call("Page.navigate", url=file.absolute().as_uri())
        deadline = time.monotonic() + 60
        while self.run("document.documentElement?.dataset.ready") != "true":
            if time.monotonic() > deadline:
                raise RuntimeError(f"the page is not ready: {self.complaints()}")
            time.sleep(0.05)

    def run(self, script):
        """The value of a JavaScript expression."""
        result = self.call("Runtime.evaluate", expression=script, returnByValue=True)
        if "exceptionDetails" in result:
            raise RuntimeError(f"{script}: {result['exceptionDetails']}")
        return result["result"].get("value")

    def mouse(self, kind, x, y, button="left", clicks=1):
        self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button=button if kind != "mouseMoved" else "none",
                  buttons=1 if kind != "mouseReleased" else 0, clickCount=clicks)

    def complaints(self):
        """Exceptions, console errors and what the page asked of the network beside itself."""
        found = []
        for event in self.events:
            if event.get("method") in ("Runtime.exceptionThrown", "Log.entryAdded", "Runtime.consoleAPICalled"):
                found.append(event["params"])
            if event.get("method") == "Network.requestWillBeSent":
                url = event["params"]["request"]["url"]
                if not url.startswith("file:"):
                    found.append(url)
        return found

    def screenshot(self, file, whole=False):
        """`whole`: all of the page, not only what is in sight."""
        shot = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=whole, **({"clip": {
            "x": 0, "y": 0, "width": self.run("document.documentElement.clientWidth"),
            "height": self.run("document.documentElement.scrollHeight"), "scale": 1}} if whole else {}))
        file.write_bytes(base64.b64decode(shot["data"]))

    def close(self):
        self.process.kill()
        self.process.wait()
        os.close(self.write_end)
        os.close(self.read_end)
        self.profile.cleanup()
