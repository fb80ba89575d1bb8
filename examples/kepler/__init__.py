"""Does the square of the period grow like the cube of the distance? A table, row by row.

orbits.csv  bodies with their mean distance from what they orbit, and how many degrees of their way
            they go in how many days, as published:
            - planets and Pluto: E. M. Standish, "Keplerian Elements for Approximate Positions of
              the Major Planets", Jet Propulsion Laboratory, table 1 (1800 to 2050): semi-major
              axis, and the rate of the mean longitude in a Julian century
            - Io to Callisto: JPL, "Planetary Satellite Mean Orbital Parameters": semi-major axis,
              daily motion
            - the Moon: JPL Horizons, physical data of body 301: semi-major axis, orbit period
            Measured facts, free to use.
sky.py      the pipeline: the table is sprayed into rows, rows are worked on as Arrow batches

    dovetail up
    dovetail pipeline run examples.kepler.sky:sky
    python -m examples.kepler.sky
"""
