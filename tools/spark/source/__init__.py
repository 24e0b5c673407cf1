"""Reading: the data source, its plan on the driver, its decoder on the executors."""
