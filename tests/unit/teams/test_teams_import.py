"""What a front end has to have installed."""

import subprocess
import sys


def test_submitting_needs_neither_java_nor_pyspark() -> None:
    """T8: an application that only submits jobs imports no Spark and no Arrow."""
    absent = "import sys; sys.modules |= dict.fromkeys(('pyspark', 'pyarrow', 'pandas', 'py4j'))"
    use = "from dovetail.teams import FrontEnd, Pipeline, Team; Pipeline('p', Team('t', str))"
    subprocess.run([sys.executable, "-c", f"{absent}; {use}"], check=True)
