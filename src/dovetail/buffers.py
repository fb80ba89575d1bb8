"""The type of bytes that travel without being copied."""

#: What the hot paths pass around; everything here has `len` in bytes.
Buffer = bytes | bytearray | memoryview
