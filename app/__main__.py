"""`python -m app` is `halley`."""

from app.cli import main

main(prog_name="halley")
