"""Fujin over QUIC."""
