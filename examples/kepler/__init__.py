"""Does the square of the period grow like the cube of the distance? A table, row by row.

orbits.csv  bodies with their mean distance from what they orbit (in units of the Earth's distance
            from the Sun) and their period (in years): planets, dwarf planets, and two moons
sky.py      the pipeline: the table is sprayed into rows, rows are worked on as Arrow batches

    dovetail up
    dovetail pipeline run examples.kepler.sky:sky
    python -m examples.kepler.sky
"""
