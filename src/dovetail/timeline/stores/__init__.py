"""Where the messages of a timeline lie."""
