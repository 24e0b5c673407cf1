"""The Figg protocol."""
