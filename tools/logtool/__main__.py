"""`python -m tools.logtool` is `logtool`."""

from tools.logtool import main

main()
