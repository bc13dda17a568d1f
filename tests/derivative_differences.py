"""Where derivatives at special points are not what the limits or JAX say, each with its reason."""

from __future__ import annotations

from collections.abc import Callable

import attrs

Point = tuple[float, ...]
By = tuple[int, ...]


@attrs.frozen
class Difference:
    reason: str
    where: Callable[[Point, By], bool]


_LOG_OF_0 = Difference(
    "at base 0 the logarithm counts as 0, as in JAX, so that 0.0**0.0 has finite derivatives",
    lambda point, by: point[0] == 0 and 1 in by,
)
_NO_MASS = Difference(
    "where p or q is 0 it is a constant, as in JAX: a probability that underflowed must not make a gradient infinite",
    lambda point, by: 0 in point,
)
_POLES_OF_GAMMA = Difference(
    "at a pole of gamma there is no derivative: the limits beside it are those of a residue, which may be tiny",
    lambda point, by: any(p <= 0 and p == int(p) for p in (*point, sum(point))),
)
_AT_0 = Difference(
    "where x is 0 the logarithm counts as 0, as of powers; (0, 0) is no point of the domain",
    lambda point, by: point[1] == 0 and (0 in by or point[0] == 0),
)

FROM_LIMITS = {
    "pow": _LOG_OF_0,
    "numpy.power": _LOG_OF_0,
    "numpy.hypot": Difference("the origin is a kink, as of abs, and counts as flat", lambda point, by: not any(point)),
    "numpy.frexp": Difference("0 has the exponent 0, as in NumPy and JAX", lambda point, by: point == (0.0,)),
    "numpy.heaviside": Difference("y counts where x is 0 and nowhere beside", lambda point, by: point[0] == 0),
    "special.beta": _POLES_OF_GAMMA,
    "special.betaln": _POLES_OF_GAMMA,
    "special.boxcox": _LOG_OF_0,
    "special.boxcox1p": Difference(_LOG_OF_0.reason, lambda point, by: point[0] == -1 and 1 in by),
    "special.gamma": _POLES_OF_GAMMA,
    "special.gammainc": _AT_0,
    "special.gammaincc": _AT_0,
    "special.rel_entr": _NO_MASS,
    "special.kl_div": _NO_MASS,
}

_FLAT = Difference("the slope of abs at 0 is 0, between -1 and 1; in JAX it is 1", lambda point, by: point[0] == 0)
_NAN_IN_JAX = "JAX has NaN where the limits are infinite"
_POLES = Difference("JAX's trigamma is NaN at poles and has few digits between them", lambda point, by: point[0] <= 0)
_POWER = Difference(
    "at base 0 JAX multiplies 0 by infinity",
    lambda point, by: point[0] == 0,
)
FROM_JAX = {
    "abs": _FLAT,
    "numpy.copysign": _FLAT,
    "acosh": Difference("at its end JAX has NaN", lambda point, by: point[0] == 1),
    "atanh": Difference(_NAN_IN_JAX, lambda point, by: abs(point[0]) == 1),
    "digamma": _POLES,
    "lgamma": _POLES,
    "pow": _POWER,
    "numpy.power": _POWER,
    "numpy.hypot": Difference(
        "where |x| = |y| JAX differentiates a maximum: its second derivatives are 0, its slope at the origin 1/2",
        lambda point, by: abs(point[0]) == abs(point[1]),
    ),
    "numpy.sinc": Difference("beside 0 JAX's quotients cancel", lambda point, by: 0 < abs(point[0]) < 0.01),
    "numpy.i0": Difference(
        "JAX's is 0 at 0, cancels beside it, and is NaN far away", lambda point, by: not 0.01 < abs(point[0]) < 100
    ),
    "nn.celu": Difference(
        "at 0 it has the derivatives of its left side, as elu has; JAX takes half twice",
        lambda point, by: point[0] == 0,
    ),
    "nn.log1mexp": Difference(_NAN_IN_JAX, lambda point, by: point[0] in (0, 100)),
    "special.log_ndtr": Difference("far below JAX cancels", lambda point, by: point[0] <= -20 and by != ()),
    "special.xlogy": Difference(_NAN_IN_JAX, lambda point, by: point[1] == 0),
    "special.xlog1py": Difference(_NAN_IN_JAX, lambda point, by: point[1] == -1),
    "special.logit": Difference(_NAN_IN_JAX, lambda point, by: point[0] == 0),
    "special.kl_div": Difference(
        "where p or q is 0 it is infinite or a constant; JAX's slope by p is that of -p", lambda point, by: 0 in point
    ),
    "special.ndtri": Difference("at the ends JAX's slope is 0", lambda point, by: point[0] in (0, 1)),
}
