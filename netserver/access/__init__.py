"""Who may do what: keys and rights."""
