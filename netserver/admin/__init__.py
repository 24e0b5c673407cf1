"""The administrators' side: health, metrics and the API over HTTP."""
