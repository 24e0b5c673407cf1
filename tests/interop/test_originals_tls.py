"""The originals' own clients against listeners that demand TLS and a client certificate: by themselves where they can,
else through a TLS proxy beside them (docs/tls.md).

Each needs something that is not here by itself: QUINTLOG_FIGG=CHECKOUT (Go), QUINTLOG_FUJIN=CHECKOUT (Go),
QUINTLOG_RELIABLY=CHECKOUT (Ruby), QUINTLOG_PUBSUB=DIRECTORY with BlipMQ's pub_bmq and sub_bmq and stunnel,
QUINTLOG_TANK=DIRECTORY with its tank-cli and socat.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from netserver.config.sections import PROTOCOL_SECTIONS
from netserver.testing import ServerProcess, server
from tests.certificates import Authority
from tests.interop.original_fujin import NEEDED as FUJIN_NEEDED
from tests.interop.original_fujin import ONE_THREAD, built

BUILD_S = 600
TIMEOUT_S = 120
API_KEY = "a key of many letters"

pytestmark = pytest.mark.slow


def place(name: str, *programs: str) -> Path:
    """Where an original is, and what it needs beside it; skips the test without them."""
    found = Path(os.environ.get(f"QUINTLOG_{name}", "/nowhere"))
    missing = [program for program in programs if shutil.which(program) is None]
    if not found.is_dir() or missing:
        pytest.skip(f"QUINTLOG_{name} names no directory" if not missing else f"no {missing[0]} here")
    return found


class Files:
    """Certificates, by the names that TLS programs have for them."""

    def __init__(self, directory: Path) -> None:
        authority = Authority(directory / "authority")
        self.ca = authority.ca
        self.server = authority.signed("server")
        self.cert, self.key = authority.signed("client")


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Files:
    return Files(tmp_path_factory.mktemp("files"))


@pytest.fixture(scope="module")
def process(files: Files) -> Iterator[ServerProcess]:
    section = {"tls_certificate": files.server[0], "tls_key": files.server[1], "tls_client_ca": files.ca}
    settings: dict[str, dict[str, Any]] = {name: dict(section) for name in PROTOCOL_SECTIONS}
    settings["blipmq"]["allowed_api_keys"] = API_KEY
    with server(settings=settings) as running:
        yield running


def run(command: list[str], **options: Any) -> str:
    """What a program prints."""
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=TIMEOUT_S, **options)
    assert done.returncode == 0, (done.stdout[-500:], done.stderr[-2000:])
    return done.stdout


@contextlib.contextmanager
def proxy(command: list[str], port: int) -> Iterator[str]:
    """A program that listens for plain connections; its address, once it does."""
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as program:
        try:
            deadline = time.monotonic() + 20
            while True:
                try:
                    socket.create_connection(("127.0.0.1", port), 1).close()
                    break
                except OSError:
                    assert program.poll() is None, "the proxy has ended"
                    assert time.monotonic() < deadline, "the proxy does not listen"
                    time.sleep(0.05)
            yield f"127.0.0.1:{port}"
        finally:
            program.terminate()


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        return int(listening.getsockname()[1])


def test_figg_sdk(process: ServerProcess, files: Files, tmp_path: Path) -> None:
    checkout = place("FIGG", "go") / "sdk" / "go"
    source = Path(__file__).parent / "figg_client" / "main.go"
    target = checkout.resolve() / "cmd" / "quintlog"
    overlay = tmp_path / "overlay.json"
    overlay.write_text(json.dumps({"Replace": {str(target / "main.go"): str(source)}}))
    program = str(tmp_path / "figg_client")
    command = ["go", "build", f"-overlay={overlay}", "-o", program, str(target)]
    subprocess.run(command, cwd=checkout, check=True, timeout=BUILD_S)
    where = "{}:{}".format(*process.address("figg"))
    lines = run([program, where, files.ca, files.cert, files.key, "sdk", "20"]).split()
    assert lines == [*map(str, range(20)), "ok"]


RUBY = """
require "openssl"
require "socket"
require_relative "%(lib)s/app"

class TlsSocket
  def self.new(host, port)
    context = OpenSSL::SSL::SSLContext.new
    context.set_params(ca_file: ENV["QUINTLOG_CA"], verify_mode: OpenSSL::SSL::VERIFY_PEER)
    context.add_certificate(OpenSSL::X509::Certificate.new(File.read(ENV["QUINTLOG_CERT"])),
                            OpenSSL::PKey.read(File.read(ENV["QUINTLOG_KEY"])))
    socket = OpenSSL::SSL::SSLSocket.new(TCPSocket.new(host, port), context)
    socket.sync_close = true
    socket.hostname = host
    socket.connect
    socket.post_connection_check(host)
    socket
  end
end

puts App.new("localhost", socket: TlsSocket).run(ARGV)
"""
"""The original's client takes the class of its sockets from whoever makes it."""


def test_reliably_ruby(process: ServerProcess, files: Files, tmp_path: Path) -> None:
    lib = place("RELIABLY", "ruby") / "client" / "lib"
    script = tmp_path / "client.rb"
    script.write_text(RUBY % {"lib": lib.resolve()})
    environment = {
        **os.environ,
        "QUINTLOG_CA": files.ca,
        "QUINTLOG_CERT": files.cert,
        "QUINTLOG_KEY": files.key,
    }
    port = str(process.address("reliably")[1])
    out = run(["ruby", str(script), "-p", port, "-m", "crc", "-n", "3200"], env=environment)
    assert out.split()[1] == "ok"


def test_blipmq_through_stunnel(process: ServerProcess, files: Files, tmp_path: Path) -> None:
    programs = place("PUBSUB", "stunnel")
    port = free_port()
    configuration = tmp_path / "stunnel.conf"
    configuration.write_text(
        f"foreground = yes\npid =\n[blipmq]\nclient = yes\naccept = 127.0.0.1:{port}\n"
        f"connect = {'{}:{}'.format(*process.address('blipmq'))}\nCAfile = {files.ca}\ncert = {files.cert}\n"
        f"key = {files.key}\nverifyChain = yes\ncheckIP = 127.0.0.1\n"
    )
    with proxy(["stunnel", str(configuration)], port) as where:
        common = ["--addr", where, "--api-key", API_KEY, "--subject", "jobs", "--count", "500", "--qos", "1"]
        command = [str(programs / "sub_bmq"), *common]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as subscriber:
            try:
                deadline = time.monotonic() + 20
                while not process.admin("GET", "/v1/subscriptions")["items"]:
                    assert time.monotonic() < deadline, "it does not subscribe"
                    time.sleep(0.05)
                run([str(programs / "pub_bmq"), *common, "--message-size", "100"])
                out, _ = subscriber.communicate(timeout=TIMEOUT_S)
            finally:
                subscriber.kill()
        assert subscriber.returncode == 0, out
        assert "500" in out
    assert process.admin("GET", "/v1/topics/jobs")["partition_details"][0]["next_offset"] == 501


def test_tank_cli_through_socat(process: ServerProcess, files: Files) -> None:
    client = str(place("TANK", "socat") / "tank-cli")
    port = free_port()
    there = "OPENSSL:{}:{}".format(*process.address("tank"))
    command = [
        "socat", f"TCP-LISTEN:{port},bind=127.0.0.1,fork,reuseaddr",
        f"{there},cafile={files.ca},cert={files.cert},key={files.key},verify=1",
    ]  # fmt: skip
    with proxy(command, port) as where:
        run([client, "-b", where, "-t", "clicks", "create_topic", "1"])
        run([client, "-b", where, "-t", "clicks/0", "produce", "one", "two", "three"])
        out = run([client, "-b", where, "-t", "clicks/0", "get", "-d", "1"])
    assert out.split()[:3] == ["one", "two", "three"]


@pytest.mark.parametrize("needed", [pytest.param("", marks=FUJIN_NEEDED)])
def test_fujin_go(process: ServerProcess, files: Files, tmp_path: Path, needed: str) -> None:
    program = built("fujin_client", tmp_path)
    where = "{}:{}".format(*process.address("fujin"))
    environment = {**ONE_THREAD, "QUINTLOG_CA": files.ca, "QUINTLOG_CERT": files.cert, "QUINTLOG_KEY": files.key}
    assert run([str(program), where, "write", "go", "10", "1"], env=environment).split()[-1] == "ok"
    came = run([str(program), where, "fetch", "go", "10", "100", "ack"], env=environment).split()
    assert came == [*(f"0-{number}" for number in range(10)), "ok"]
