"""`python -m gpuload`."""

from gpuload.cli import main

main(prog_name="gpuload")
