"""The JSON streaming protocol (reliably): server session and asyncio client."""
