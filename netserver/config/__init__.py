"""The configuration file: sections, settings and how they are read."""
