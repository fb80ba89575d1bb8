"""The deciding part of timelines, pure."""
