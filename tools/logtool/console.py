"""`console`: an address of the server's console that logs in whoever opens it first."""

from __future__ import annotations

import click

from tools.logtool.cli import Command, Settings
from tools.logtool.lib.address import need_admin
from tools.logtool.lib.output import Column


@click.command(cls=Command)
@click.pass_obj
def console(settings: Settings) -> None:
    """Print an address of the server's console that logs in whoever opens it first. Through the server.

    It counts once and for two minutes, with the rights of the token or key that this command uses. Behind a proxy put
    the proxy's name in place of host and port.
    """
    admin = need_admin(settings)
    found = admin.call("POST", "/v1/console/logins", {})
    url = f"{admin.url}{found['path']}"
    if settings.output.form == "table":
        settings.output.write(f"{url}\n".encode())
        settings.output.flush()
    else:
        item = {"url": url, "expires_seconds": found["expires_seconds"]}
        settings.output.items([Column(name) for name in item], [item])
