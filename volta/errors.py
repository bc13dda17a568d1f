"""Every error class of Volta. ``docs/errors.md`` shows how each arises and the way out."""

from volta.core.errors import *  # noqa: F403 - a namespace for users: all public names of the module
