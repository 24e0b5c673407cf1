"""The console: pages for people on the admin listener, HTML that works without script."""
