"""Figures behind the guarantees: `python -m benchmarks.trust kills`, and the other commands.

A command is a module with a number of trials, ``COUNT``, which ``--count`` replaces; ``measure``, which does them and
returns its figures; and ``summary``, which puts the figures into one line.
"""
