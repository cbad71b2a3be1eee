"""Names of `app/processes` for the load generator, which still imports them from here."""

from app.processes import module_command, module_environment

__all__ = ["module_command", "module_environment"]
