"""The code a job runs, as it was at its submit: what git says of it, or a copy.

Standard library and the broker's words only: the broker, the worker and the command line all use it.
"""
