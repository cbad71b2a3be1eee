"""NetworkTables 4.1 (`networktables4.adoc`, revision 4.1): typed topics that exist while published, and last values."""
