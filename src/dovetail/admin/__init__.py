"""Every question and every change of an operator, once, as plain typed functions."""
