"""The questions, one module each. `measure(run)` answers with lines of the table."""
