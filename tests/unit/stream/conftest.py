"""What the tests of the shared stream share."""

import pytest

# Lets a failed assertion in the conformance suite show its values.
pytest.register_assert_rewrite("tests.unit.stream.shared_log_conformance")
