"""The nouns every other room uses: dtypes, abstract values, the IR, errors, pytrees, the binding hook."""

from volta.core import floats as floats  # first of all: the rest of the import runs in the environment that it makes
