"""`halley pipeline init`: a project for Spark's declarative pipelines, over Halley's source and sink.

    init.py    writes the project of a user, from the files in `template`
    attach.py  what a declarative pipeline does first: it adds the format `halley` to its session
    template/  the project: its settings, transformations, a script with charts, and a page that explains them

The files in `template` are a user's from the moment they are written. They import nothing of Halley but `attach`, and
the session in `explore.py`. What differs between projects is in the files that are not Python or SQL, as `${name}`.
"""
