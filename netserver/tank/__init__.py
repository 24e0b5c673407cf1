"""The TANK protocol: codec, server session and asyncio client."""
