"""One storage node's disk: segment files, their index, and recovery at start."""
