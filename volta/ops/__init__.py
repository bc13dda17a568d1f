"""The vocabulary: every primitive, defined once, by family. Importing this package fills the registry."""
