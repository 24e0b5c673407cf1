"""Durable sessions of clients, with the messages that they have not acknowledged."""
