"""What is in LMDB: the catalog of topics, the index of positions, what writers have committed."""
