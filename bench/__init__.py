"""Measures deltastore beside its peers and the limits of the machine: `python -m bench`, see README.md."""
