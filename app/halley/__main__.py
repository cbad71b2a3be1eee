"""Run the command line: `python -m halley` is the same as `halley`."""

from halley.cli import main

main(prog_name="halley")
