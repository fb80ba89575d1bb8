"""`dovetail pipeline`: runs the teams of a pipeline, submits jobs, shows its state.

root.py       the commands' root, and how a pipeline is found
looking.py    `status`, `show`
running.py    `run`: Spark, and the archive that goes with it
masters.py    runs a pipeline, alone or as one of several masters, and displays it
jobs.py       `submit`, `results`, `cancel`
dead.py       `dead list`, `dead replay`, `dead drop`
packing.py    `package`
"""

from dovetail.cli.commands.pipeline import dead, jobs, looking, packing, running
from dovetail.cli.commands.pipeline.root import app

__all__ = ["app", "dead", "jobs", "looking", "packing", "running"]
