"""Durable positions of consumers: deliveries, acknowledgements, dead letters."""
