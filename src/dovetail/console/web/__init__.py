"""The web application of the console."""
