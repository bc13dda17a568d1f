"""The nouns every other room uses: dtypes, abstract values, the IR, errors, pytrees, the binding hook."""
