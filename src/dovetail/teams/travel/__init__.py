"""Ships functions to Spark's workers, which may run on other machines.

A function travels by reference, as the name of its module and its own, wherever Python can import
it again; so the workers must have its module. They get it in an archive (`packing`). A function
without an importable name, such as a lambda or a function of a script, travels by value.

parcel.py    what the driver sends: checked before it leaves, and opened where it arrives
packing.py   an archive with a pipeline's modules, their libraries and the compiled decoder
"""
