"""What every TCP listener shares: connections, backpressure, answers that wait for a commit, TLS."""
