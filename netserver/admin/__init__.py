"""Administration: health, metrics and the API over HTTP."""
