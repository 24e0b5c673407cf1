"""Files and directories: the system's calls behind one interface, open descriptors, the lock of a directory."""
