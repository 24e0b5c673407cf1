"""What the Python clients of all protocols share."""
