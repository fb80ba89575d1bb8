"""What the tests of elections share."""

import pytest

# Lets a failed assertion in the conformance suite show its values.
pytest.register_assert_rewrite("tests.unit.election.shared_log_conformance")
