"""`dovetail pipeline`: run the teams of a pipeline, give them jobs, look at it.

root.py       the commands' root, and how a pipeline is found
looking.py    `status`, `show`
running.py    `run`: Spark, and the archive that goes with it
masters.py    how a pipeline runs, alone or as one of several masters, and its display
jobs.py       `submit`, `results`, `cancel`
dead.py       `dead list`, `dead replay`, `dead drop`
packing.py    `package`
"""

from dovetail.cli.commands.pipeline import dead, jobs, looking, packing, running
from dovetail.cli.commands.pipeline.root import app

__all__ = ["app", "dead", "jobs", "looking", "packing", "running"]
