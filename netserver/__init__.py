"""The server and the clients of its five protocols.

Public for programs: ``figg``, ``tank``, ``blipmq``, ``fujin`` and ``reliably`` (clients with asyncio),
``client.blocking`` (all five without it), ``errors`` and ``testing``; `quintlog` has them under one name. What the
commands may import besides is the list ``NETSERVER_PUBLIC`` of ``tests/unit/test_tidy.py``.
"""

import engine  # noqa: F401 - whether its modules, and those of this package, are loaded from source
