"""Run the command line: `python -m app` is the same as `halley`."""

from app.cli import main

main(prog_name="halley")
