"""Records over HTTP: publishing, reading and following, for whoever has curl. Routes: ``netserver.admin.server``."""
