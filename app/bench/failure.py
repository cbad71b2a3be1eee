"""Why a measurement could not be made or finished."""


class BenchFailed(Exception):
    """There is no result; the text is a sentence for whoever asked for one."""
