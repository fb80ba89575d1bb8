"""Tests that need Java: skipped where there is none, and failed in CI."""

import os

import pytest

from dovetail.spark.runtime import JavaMissing, find_java


def need_java() -> None:
    """Skips the test without Java; in CI it fails."""
    try:
        find_java(os.environ)
    except JavaMissing as error:
        if os.environ.get("CI") == "true":
            raise
        pytest.skip(str(error))
