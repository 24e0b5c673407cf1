"""QUIC by aioquic's state machine, with sockets and timers of our own."""
