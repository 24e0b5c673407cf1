"""The console in Chromium: an empty browser log, live records, many tabs, a server that is killed, a narrow and a dark
screen, the keyboard alone, a path behind a proxy.

Nightly, where Debian's chromium and chromium-driver and the extra console-test are installed. With
QUINTLOG_SCREENSHOTS=1 the pictures of docs/console/ are made anew.
"""

from __future__ import annotations

import base64
import contextlib
import io
import os
import shutil
import socket
import subprocess
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

import pytest

from netserver.console.formatting import part_of_path
from netserver.testing import ServerProcess, server
from tests.figg_peer import FiggPeer

NIGHTLY = os.environ.get("QUINTLOG_NIGHTLY") == "1"
BROWSER, DRIVER, NGINX = (shutil.which(name) for name in ("chromium", "chromedriver", "nginx"))
try:
    from PIL import Image
    from selenium import webdriver
    from selenium.webdriver.common.by import By
    from selenium.webdriver.common.keys import Keys
    from selenium.webdriver.support.wait import WebDriverWait
except ImportError:
    BROWSER = None

pytestmark = [
    pytest.mark.whole,
    pytest.mark.slow,
    pytest.mark.timeout(300),
    pytest.mark.skipif(not NIGHTLY, reason="QUINTLOG_NIGHTLY=1: a browser takes a minute"),
    pytest.mark.skipif(not (BROWSER and DRIVER), reason="chromium, its driver or the extra console-test is missing"),
]

PATIENCE_S: Final = 60
PICTURES: Final = Path(__file__).resolve().parents[2] / "docs" / "console"
PICTURE_BYTES: Final = 100_000
HOSTILE: Final = (
    b"<b>bold</b>", b'"><script>document.title="taken"</script>', b"a\x00b\xff", "\u202egnp.exe".encode(), b"..",
    b"x/y",
)  # fmt: skip
PAGES: Final = (
    "", "topics", "topics?name=topic-*", "topics/orders", "topics/orders/records", "topics/orders/records?view=json",
    "topics/orders/records/0/1", "storage", "storage/orders", "groups", "groups/billing",
    "sessions", "connections", "settings",
)  # fmt: skip


POINTS: Final = "return document.querySelector('svg.chart polyline')?.getAttribute('points') ?? ''"


@pytest.fixture(scope="module")
def quintlog() -> Iterator[ServerProcess]:
    """A server with 10,000 topics, hostile names and values, and records to look at."""
    with server() as process:
        for number in range(10_000):
            process.admin("POST", "/v1/topics", {"name": f"topic-{number:05d}"})
        for hostile in HOSTILE:
            encoded = base64.b64encode(hostile).decode()
            record = {"value_base64": encoded, "key_base64": encoded}
            process.admin("POST", f"/v1/topics/{quote(hostile, safe='')}/records", {"records": [record]})
        orders = [
            {
                "key": f"customer-{number % 17}",
                "timestamp_ms": 1_795_822_592_000 + number * 250,
                "value": f'{{"order": {number}, "customer": {{"id": {number % 17}}}, "amount": {number % 1000}.50}}',
            }
            for number in range(1, 2001)
        ]
        process.admin("POST", "/v1/topics/orders/records", {"records": orders})
        exact = {"value": f'{{"id": {2**53 + 1}}}', "timestamp_ms": 2**53 + 1}
        process.admin("POST", "/v1/topics/exact/records", {"records": [exact]})
        process.admin("POST", "/v1/groups", {"name": "billing", "topic": "orders"})
        yield process


class Browser:
    """One window."""

    def __init__(self, driver: Any, process: ServerProcess, base: str) -> None:
        self.driver = driver
        self.process = process
        self.base = base

    def log_in(self) -> None:
        found = self.process.admin("POST", "/v1/console/logins", {})
        self.driver.get(self.base.removesuffix("/") + found["path"])
        self.wait("header nav")

    def open(self, page: str) -> None:
        self.driver.get(f"{self.base}console/{page}")

    def wait(self, selector: str, text: str = "") -> Any:
        """The first element of a selector, once one is there that shows a text."""

        def found(driver: Any) -> Any:
            elements = driver.find_elements(By.CSS_SELECTOR, selector)
            return next((one for one in elements if text in one.text), None)

        return WebDriverWait(self.driver, PATIENCE_S, ignored_exceptions=STALE).until(found, f"{selector} {text!r}")

    def run(self, script: str) -> Any:
        return self.driver.execute_script(script)

    def until(self, condition: Callable[[], object]) -> None:
        WebDriverWait(self.driver, PATIENCE_S).until(lambda _: condition())

    def redrawn(self, page: str) -> Any:
        """The line of a page's chart, after the page was loaded anew."""
        self.open(page)
        return self.run(POINTS)

    def command(self, name: str, **parameters: Any) -> None:
        self.driver.execute_cdp_cmd(name, parameters)

    def resize(self, width: int, height: int = 700) -> None:
        self.command(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False
        )

    def dark(self) -> None:
        self.command("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": "dark"}])

    def messages(self) -> list[str]:
        """What the browser complained about since the last call."""
        return [entry["message"] for entry in self.driver.get_log("browser")]

    def picture(self, name: str, directory: Path) -> None:
        """A picture of the window, in docs/console/ where these are to be made anew."""
        folder = PICTURES if os.environ.get("QUINTLOG_SCREENSHOTS") == "1" else directory
        folder.mkdir(exist_ok=True)
        path = folder / f"{name}.png"
        picture = Image.open(io.BytesIO(self.driver.get_screenshot_as_png())).convert("RGB")
        picture.quantize(48).save(path, optimize=True)
        assert path.stat().st_size < PICTURE_BYTES


if BROWSER:
    from selenium.common.exceptions import StaleElementReferenceException

    STALE = (StaleElementReferenceException,)


@contextlib.contextmanager
def browsing(process: ServerProcess, base: str = "", *, logged_in: bool = True) -> Iterator[Browser]:
    options = webdriver.ChromeOptions()
    options.binary_location = str(BROWSER)
    for argument in ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(str(DRIVER)))
    try:
        browser = Browser(driver, process, base or process.admin_url + "/")
        browser.resize(1000, 620)
        if logged_in:
            browser.log_in()
        yield browser
    finally:
        driver.quit()


@contextlib.contextmanager
def publishing(process: ServerProcess, topic: bytes) -> Iterator[None]:
    """Meanwhile a topic gets records, as fast as one connection gives them."""
    is_over = threading.Event()

    def publish() -> None:
        with FiggPeer(process.address("figg")) as peer:
            while not is_over.is_set():
                peer.send(topic, [b"record of the flood"] * 5000)
                peer.wait_for_ack(peer.sent - 1)

    thread = threading.Thread(target=publish)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()


def test_every_page_loads_and_the_browser_has_nothing_to_say(quintlog: ServerProcess, tmp_path: Path) -> None:
    with browsing(quintlog) as browser:
        for page in PAGES:
            browser.open(page)
            browser.wait("main h1")
            timing = "const t = performance.getEntriesByType('navigation')[0]; return t.responseEnd - t.requestStart"
            print(f"/console/{page}: {browser.run(timing):.0f} ms")
            name = {"": "overview", "topics/orders/records": "records", "topics/orders/records/0/1": "record"}.get(page)
            if name is not None:
                browser.picture(name, tmp_path)
        assert browser.messages() == []


def test_hostile_names_keys_and_values_stay_text(quintlog: ServerProcess) -> None:
    with browsing(quintlog) as browser:
        for hostile in HOSTILE:
            for page in ("", "/records", "/records?live=1", "/records/0/1"):
                browser.open(f"topics/{part_of_path(hostile)}{page}")
                browser.wait("main h1")
                assert browser.driver.title.endswith("Quintlog")
                assert browser.run("return document.querySelectorAll('main b, main script').length") == 0
        assert browser.messages() == []


def test_numbers_are_exact_and_live_records_come(quintlog: ServerProcess, tmp_path: Path) -> None:
    with browsing(quintlog) as browser:
        browser.open("topics/exact/records/0/1")
        assert f'"id": {2**53 + 1}' in browser.wait("pre", "id").text
        assert str(2**53 + 1) in browser.wait("dl.facts").text
        browser.open("topics/exact/records?live=1")
        browser.wait("#live-state", "waiting")
        record = {"value": f"{2**53 + 3} <i>x</i>", "timestamp_ms": 2**53 + 1}
        quintlog.admin("POST", "/v1/topics/exact/records", {"records": [record]})
        assert browser.wait("td pre", "<i>x</i>").text == f"{2**53 + 3} <i>x</i>"
        assert browser.wait("td.mono", f"{2**53 + 1} ms")
        assert browser.messages() == []


def test_a_fast_topic_is_sampled_and_pauses(quintlog: ServerProcess, tmp_path: Path) -> None:
    with browsing(quintlog) as browser:
        quintlog.admin("POST", "/v1/topics", {"name": "fast"})
        browser.open("topics/fast/records?live=1")
        browser.wait("#live-state", "waiting")
        with publishing(quintlog, b"fast"):
            browser.wait("#live-state", "passed over")
            print(browser.wait("#live-state").text)
            browser.picture("live", tmp_path)
            browser.wait("#live-pause").click()
            browser.wait("#live-state", "paused")
            top = browser.wait("tbody tr td").text
            assert len(browser.driver.find_elements(By.CSS_SELECTOR, "tbody tr")) <= 200
            assert browser.wait("tbody tr td").text == top
            browser.wait("#live-pause").click()
            browser.wait("#live-state", "records a second")
        print(f"heap: {browser.run('return performance.memory.usedJSHeapSize') / 1e6:.1f} MB")
        assert browser.messages() == []


def test_eight_live_tabs(quintlog: ServerProcess) -> None:
    """More than a browser opens connections to one server for anything but WebSockets."""
    with browsing(quintlog) as browser:
        quintlog.admin("POST", "/v1/topics", {"name": "tabs"})
        for number in range(8):
            if number:
                browser.driver.switch_to.new_window("tab")
            browser.open("topics/tabs/records?live=1")
            browser.wait("#live-state", "waiting")
        browser.driver.switch_to.new_window("tab")
        browser.open("")
        browser.wait("main h1", "Overview")
        quintlog.admin("POST", "/v1/topics/tabs/records", {"records": [{"value": "for all of them"}]})
        for handle in browser.driver.window_handles[:8]:
            browser.driver.switch_to.window(handle)
            browser.wait("td pre", "for all of them")
            assert browser.messages() == []


def test_a_server_that_is_killed_and_comes_again() -> None:
    with server() as process, browsing(process) as browser:
        process.admin("POST", "/v1/topics", {"name": "t"})
        browser.open("topics/t/records?live=1")
        browser.wait("#live-state", "waiting")
        browser.driver.switch_to.new_window("tab")
        browser.open("")
        browser.wait("main h1", "Overview")
        first, second = browser.driver.window_handles
        process.kill()
        for handle in (second, first):
            browser.driver.switch_to.window(handle)
            browser.wait("#lost", "does not answer")
        process.restart()
        for handle in (second, first):  # which nobody is logged in to
            browser.driver.switch_to.window(handle)
            browser.wait(".login form")
        browser.log_in()
        browser.open("topics/t/records?live=1")
        browser.wait("#live-state", "waiting")


def test_a_narrow_screen_and_a_dark_one(quintlog: ServerProcess, tmp_path: Path) -> None:
    with browsing(quintlog) as browser:
        browser.resize(360)
        for page in (*PAGES, f"topics/{part_of_path(HOSTILE[1])}/records"):
            browser.open(page)
            browser.wait("main h1")
            assert browser.run("return document.documentElement.scrollWidth") <= 360, page
        browser.open("topics")
        light = browser.run("return getComputedStyle(document.body).backgroundColor")
        browser.dark()
        dark = browser.run("return getComputedStyle(document.body).backgroundColor")
        assert light != dark
        browser.picture("narrow-dark", tmp_path)
        assert browser.messages() == []


def test_the_lag_of_a_group_is_drawn_and_told(quintlog: ServerProcess, tmp_path: Path) -> None:
    """It is noted every ten seconds, while a consumer goes on and new records come."""
    with browsing(quintlog) as browser:
        for step in range(1, 10):
            before = browser.redrawn("groups/billing")
            browser.until(lambda seen=before: browser.redrawn("groups/billing") != seen)
            positions = [{"partition": 0, "next_offset": 1 + step * 150}]
            quintlog.admin("POST", "/v1/groups/billing/positions", {"positions": positions})
            records = [{"value": "more"}] * (500 if step % 3 == 0 else 20)
            quintlog.admin("POST", "/v1/topics/orders/records", {"records": records})
        told = browser.wait("figure figcaption", "Lag in records over").text
        assert browser.run("return document.querySelector('svg.chart').getAttribute('aria-label')") == told
        browser.picture("lag", tmp_path)
        browser.dark()
        stroke = browser.run("return getComputedStyle(document.querySelector('svg.chart polyline')).stroke")
        assert stroke == "rgb(125, 184, 245)"
        browser.open("groups?text=billing")
        assert browser.wait("svg.spark").get_attribute("aria-label").startswith("Lag in records over")
        assert browser.messages() == []


def test_the_keyboard_is_enough(quintlog: ServerProcess) -> None:
    """Logging in, going to a topic, filtering its records: keys alone."""
    with browsing(quintlog, logged_in=False) as browser:

        def press(*keys: str) -> None:
            webdriver.ActionChains(browser.driver).send_keys(*keys).perform()

        def tab_to(wanted: str) -> None:
            """Until what has the focus has such a name or text."""
            script = "const at = document.activeElement; return [at.name || '', at.textContent.trim()]"
            for _ in range(60):
                if wanted in browser.run(script):
                    return
                press(Keys.TAB)
            raise AssertionError(f"no way to {wanted!r}")

        browser.open("topics")
        browser.wait("input[name=key]")  # which has the focus
        press(quintlog.token, Keys.ENTER)
        browser.wait("main h1", "Topics")
        press(Keys.TAB)
        assert browser.run("return document.activeElement.className") == "skip"
        press(Keys.ENTER)
        assert browser.run("return document.activeElement.id") == "content"
        tab_to("name")
        press("order", Keys.ENTER)
        browser.wait("main a", "orders")
        tab_to("orders")
        press(Keys.ENTER)
        browser.wait("main h1", "Topic orders")
        tab_to("Records")
        press(Keys.ENTER)
        browser.wait("main h1", "Records of orders")
        tab_to("where")
        press("/customer/id=3", Keys.ENTER)
        browser.wait("td", "customer-3")
        outline = browser.run("return getComputedStyle(document.activeElement).outlineStyle")
        assert outline != ""
        assert browser.messages() == []


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


@pytest.mark.skipif(NGINX is None, reason="nginx is not installed")
@pytest.mark.parametrize("target", ["", "/"], ids=["path passed on", "path taken away"])
def test_behind_nginx_at_a_path(tmp_path: Path, target: str) -> None:
    port = free_port()
    with server(settings={"console": {"base_path": "/logs/"}}) as process:
        (tmp_path / "nginx.conf").write_text(
            f"""daemon off; pid {tmp_path}/pid; error_log {tmp_path}/error.log; worker_processes 1;
            events {{ worker_connections 64; }}
            http {{ access_log off; client_body_temp_path {tmp_path}; proxy_temp_path {tmp_path};
            fastcgi_temp_path {tmp_path}; uwsgi_temp_path {tmp_path}; scgi_temp_path {tmp_path};
            server {{ listen 127.0.0.1:{port}; location /logs/ {{
              proxy_pass {process.admin_url}{target}; proxy_http_version 1.1;
              proxy_set_header Host $http_host; proxy_set_header X-Forwarded-Proto $scheme;
              proxy_set_header Upgrade $http_upgrade; proxy_set_header Connection $http_connection; }} }} }}"""
        )
        nginx = subprocess.Popen([str(NGINX), "-p", str(tmp_path), "-c", str(tmp_path / "nginx.conf")])
        try:
            base = f"http://127.0.0.1:{port}/logs/"
            wait_for(f"{base}console/login")
            process.admin("POST", "/v1/topics/t/records", {"records": [{"value": "through nginx"}]})
            with browsing(process, base, logged_in=False) as browser:
                found = process.admin("POST", "/v1/console/logins", {})
                browser.driver.get(f"http://127.0.0.1:{port}{found['path']}")
                browser.wait("main h1", "Overview")
                browser.wait("header a", "Topics").click()
                browser.wait("main a", "records").click()
                browser.wait("main a", "Live").click()
                browser.wait("#live-state", "waiting")
                process.admin("POST", "/v1/topics/t/records", {"records": [{"value": "live through nginx"}]})
                browser.wait("td pre", "live through nginx")
                browser.open("topics")
                browser.wait("main form[method=post] input[name=name]").send_keys("made", Keys.ENTER)
                browser.wait(".told", "Made made.")
                assert browser.messages() == []
        finally:
            nginx.terminate()
            nginx.wait()


def wait_for(url: str) -> None:
    """Until somebody answers there."""
    while True:
        with contextlib.suppress(urllib.error.URLError, ConnectionError):
            urllib.request.urlopen(url, timeout=PATIENCE_S).close()
            return
