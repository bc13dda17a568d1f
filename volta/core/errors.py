"""Error classes. Every message names the operation, the shapes and dtypes, the user's line, and the way out."""

from __future__ import annotations


class VoltaError(Exception):
    """Base class of every error that Volta raises on purpose."""


class ShapeError(VoltaError, TypeError, ValueError):
    """Operand shapes do not fit the operation. A ValueError too, which is what NumPy raises."""


class AxisError(ShapeError, IndexError):
    """An array has no such axis. An IndexError too, as NumPy's is."""


class DTypeError(VoltaError, TypeError):
    """Operand dtypes do not fit the operation, or a dtype is not supported."""


class TracerError(VoltaError, TypeError):
    """Base class of errors about values that are being traced."""


class ConcretizationTypeError(TracerError):
    """A traced value was used where a concrete Python value is needed."""


class NonConcreteBooleanIndexError(ConcretizationTypeError, IndexError):
    """A traced boolean mask was used as an index: how many elements it selects is not known while tracing."""


class TracerBoolConversionError(ConcretizationTypeError):
    """A traced value was used as a condition: ``if x > 0`` under ``jit``."""


class TracerIntegerConversionError(ConcretizationTypeError):
    """A traced value was used as a Python integer: ``range(n)`` or ``list[i]`` under ``jit``."""


class TracerArrayConversionError(ConcretizationTypeError):
    """A traced value was handed to NumPy."""


class UnexpectedTracerError(TracerError):
    """A traced value outlived its trace (it leaked through a global, a closure or an attribute)."""


class NonScalarGradError(VoltaError, TypeError):
    """``grad`` of a function whose output is not a real scalar."""


class TreeError(VoltaError, TypeError, ValueError):
    """Pytree structures that should agree do not, or a node is no valid pytree."""


class NotDifferentiableError(VoltaError, TypeError):
    """Differentiation reached an operation that has no derivative."""


class VerificationError(VoltaError):
    """An IR, a schedule or an allocation breaks a rule of the house: a bug in a pass, never the user's fault."""


class UnsupportedOperationError(VoltaError, NotImplementedError):
    """The backend has no kernel for an operation at the asked determinism level."""


class NotFiniteError(VoltaError, FloatingPointError):
    """A result has a NaN or an infinity, inside of ``debug_nans`` or ``debug_infs``."""


class CheckError(VoltaError, ValueError):
    """A check failed (``volta.experimental.checkify``)."""


class MemoryBudgetError(VoltaError, MemoryError):
    """A plan or an allocation needs more memory than its budget allows."""


class OutOfMemoryError(MemoryBudgetError):
    """A device has no memory left for what a call needs (JAX: RESOURCE_EXHAUSTED). Nothing of the call has happened."""


class DeviceError(VoltaError, RuntimeError):
    """The device that was asked for is absent or cannot be used."""


class ContextError(VoltaError, ValueError):
    """``execution_context`` was asked for a determinism level or a memory budget that is none."""


class DeviceLostError(DeviceError):
    """A fault on the device, a wrong address in a kernel say, has taken it from this process until a restart."""


class CutShortError(VoltaError, RuntimeError):
    """An array is asked for that a device never computed: an interrupt ended the loop that it was to come from."""


class DonatedBufferError(VoltaError, RuntimeError):
    """An array was used after it had been donated to a jitted call."""


class FormatError(VoltaError, ValueError):
    """A model file is truncated, corrupt, or of a newer format than this Volta reads."""


class IntegerGradError(DTypeError):
    """``grad`` with respect to an argument that is not of a float dtype."""


class VmapAxesError(VoltaError, ValueError):
    """``in_axes`` or ``out_axes`` of ``vmap`` do not fit the values, or the mapped sizes differ."""


class AxisNameError(VoltaError, NameError):
    """A collective names an axis that nothing around it maps."""


class StaticArgumentError(VoltaError, ValueError):
    """An argument marked static cannot be hashed and compared, or does not exist."""


class ArgumentError(VoltaError, TypeError, ValueError):
    """A function cannot take an argument, and did not say so itself: its cause is what failed within."""


class ArgumentNumberError(VoltaError, ValueError):
    """``argnums`` names an argument that the call does not have."""


class KernelError(VoltaError, RuntimeError):
    """A kernel of the user's own raised (its exception is the cause), does not compile, or is declared wrongly."""


class ShardingError(VoltaError, ValueError):
    """A mesh, a partition spec or a sharding does not fit the devices or the array that it is for."""


class DistributedError(VoltaError, RuntimeError):
    """Workers that run one program together cannot: one is missing, silent, or runs something else."""


class CacheWarning(RuntimeWarning):
    """Compiled kernels are not kept on disk: its folder cannot be written, or others could write in it."""
