"""Dovetail: a message and work platform.

All ownership in Dovetail is the same thing: a lease with a term, and a store that refuses an
old term. `docs/architecture.md` shows the rooms; each room's theory is the docstring of its
package.
"""

__version__ = "0.1.0"
