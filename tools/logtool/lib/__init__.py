"""What several commands share: the address of a log, output, errors, copies, what files say."""
