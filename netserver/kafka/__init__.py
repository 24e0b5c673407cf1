"""Kafka: the server's side of its wire protocol, for the clients that people have already.

The codec (``schema``, ``tables``, ``apis``, ``codec``) takes bytes and gives messages, without I/O.
"""
