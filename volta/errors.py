"""Every error class of Volta. ``docs/errors.md`` shows how each arises and the way out."""

from typing import TYPE_CHECKING

from volta.core import errors as _errors
from volta.core.absent import namespace as _namespace
from volta.core.errors import *  # noqa: F403 - a namespace for users: all public names of the module

if not TYPE_CHECKING:  # so that a type checker still knows which names there are
    __all__ = [name for name, value in vars(_errors).items() if isinstance(value, type)]
    __getattr__, __dir__ = _namespace(__name__)
