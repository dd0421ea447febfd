# SPDX-License-Identifier: Apache-2.0
"""Functions that read and write Keras variables, compiled: traced once for calls that are alike."""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp

from stratagem.engines.jax._identity import Identity, unwrapped
from stratagem.engines.jax._in_flight import InFlight
from stratagem.engines.jax._mesh import Replicas
from stratagem.engines.jax._results import Results
from stratagem.engines.jax._scopes import Discovery, Inner, Missed
from stratagem.engines.jax._signature import Signature, rebuilt
from stratagem.engines.jax._untraceable import NEEDS_VALUES, explained
from stratagem.engines.jax._variables import Variables
from stratagem.errors import TracingError

__all__ = ["CompiledFunctions"]

_logger = logging.getLogger(__name__)

_MAX_FUNCTIONS = 256
_WARN_FROM = 8  # variants of one function

_NEW_VARIABLE = "create a variable while in a stateless scope"  # in Keras's error
_MAKE_ONCE = "make layers, optimizers, metrics and variables once, outside of the function"

# Calls a function with arguments: what stands between the user's function and the compiled one.
Call = Callable[[Callable[..., Any], tuple[Any, ...], dict[str, Any]], Any]


@dataclass
class _Family:
    """All compiled variants of one function.

    Attributes:
        variants: By the kind of the arguments; several where variables were trainable for one and not for another.
        static_numbers: The function needs Python numbers as they are.
        kept: What has to live as long as the function's key.
    """

    variants: dict[Any, list[_Compiled]] = field(default_factory=dict)
    static_numbers: bool = False
    kept: list[Any] = field(default_factory=list)


class CompiledFunctions:
    """The compiled functions of one kind.

    Args:
        call: The public name of what compiles them, for error texts.
    """

    def __init__(self, call: str) -> None:
        self._call = call
        self._families: OrderedDict[Any, _Family] = OrderedDict()

    def run(
        self,
        fn: Callable[..., Any],
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        *,
        replicas: Replicas,
        through: Call,
        owner: object = None,
    ) -> Any:
        """`through(fn, args, kwargs)`, compiled.

        Args:
            fn: The user's function.
            args, kwargs: Its arguments.
            replicas: The strategy's.
            through: Calls the function in a trace.
            owner: Something else that the trace hangs on.

        Raises:
            AlreadyTraced: an argument belongs to a trace that is going on.
            TracingError: the function can't be traced.
        """
        fn, args, kwargs = unwrapped(fn, tuple(args), dict(kwargs))
        family = self._family(Identity(fn, replicas, owner))
        try:
            return self._run(family, fn, args, kwargs, replicas, through)
        except NEEDS_VALUES as error:
            if not family.static_numbers and self._signature(family, replicas, args, kwargs).has_numbers:
                family.static_numbers = True
                return self.run(fn, args, kwargs, replicas=replicas, through=through, owner=owner)
            raise explained(error, self._call) from error
        except ValueError as error:
            if _NEW_VARIABLE not in str(error):
                raise
            raise TracingError(f"the function that {self._call} traces makes a variable", fix=_MAKE_ONCE) from error

    def _run(
        self,
        family: _Family,
        fn: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        replicas: Replicas,
        through: Call,
    ) -> Any:
        signature = self._signature(family, replicas, args, kwargs)
        variants = family.variants.setdefault(signature.key, [])
        compiled = next((one for one in variants if one.fits()), None)
        if compiled is None:
            compiled = self._new(family, fn, signature, replicas)
            variants.append(compiled)
        try:
            return compiled(lambda a, k: through(fn, a, k), signature.given)
        except NEEDS_VALUES:
            variants.remove(compiled)
            raise

    def _signature(
        self, family: _Family, replicas: Replicas, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Signature:
        return Signature(self._call, replicas, args, kwargs, static_numbers=family.static_numbers)

    def _new(self, family: _Family, fn: Callable[..., Any], signature: Signature, replicas: Replicas) -> _Compiled:
        count = sum(map(len, family.variants.values())) + 1
        if count >= _WARN_FROM and count & (count - 1) == 0:
            _logger.warning(
                "%s compiles %s for the %dth time: its arguments differ in shape, or in a number or an object that the "
                "function is compiled for; arrays of few shapes are compiled once each",
                self._call,
                getattr(fn, "__qualname__", repr(fn)),
                count,
            )
        return _Compiled(signature.key, replicas)

    def _family(self, identity: Identity) -> _Family:
        key = identity.key
        family = self._families.get(key)
        if family is None:
            family = self._families[key] = _Family()
            family.kept = identity.hold(lambda: self._families.pop(key, None))
            if len(self._families) > _MAX_FUNCTIONS:
                self._families.popitem(last=False)
        return family


class _Compiled:
    """One variant: a function for arguments of one kind.

    It doesn't hold the user's function, which comes with each call, so that it lives no longer than that.
    """

    def __init__(self, key: Any, replicas: Replicas) -> None:
        self._key = key
        self._replicas = replicas
        self._devices = replicas.mesh.devices.size
        self._in_flight = InFlight(replicas.on_cpu)
        self._call: Callable[[tuple[Any, ...], dict[str, Any]], Any] | None = None
        self._variables: Variables | None = None
        self._jitted: Any = None
        self._on_replicas = False
        self._results: Results | None = None

    def fits(self) -> bool:
        """Whether the variables are trainable, or not, as they were when the function was traced."""
        return self._variables is None or self._variables.as_trainable_as_before()

    def __call__(self, call: Callable[[tuple[Any, ...], dict[str, Any]], Any], given: Sequence[Any]) -> Any:
        self._call = call
        try:
            if self._jitted is None:
                self._prepare(given)
            try:
                return self._run(given)
            except Missed:
                # Python code may do another thing at the second time; what it does now is what counts.
                self._prepare(given)
                return self._run(given)
        except Missed as missed:
            raise TracingError(
                f"the function makes the variable {missed.path!r} anew each time it is traced", fix=_MAKE_ONCE
            ) from None
        finally:
            self._call = None

    def _run(self, given: Sequence[Any]) -> Any:
        assert self._variables is not None, "prepared"
        changing, kept = self._variables.take()
        arrays, state, done = self._jitted(changing, kept, self._placed(given))
        self._variables.put(state)
        self._in_flight.note(done or arrays)
        assert self._results is not None, "traced"
        return self._results.around(arrays)

    def _placed(self, given: Sequence[Any]) -> Sequence[Any]:
        if not self._on_replicas:
            return given
        place = self._replicas.replicated
        return [
            jax.device_put(part, place)
            if isinstance(part, jax.Array) and len(part.sharding.device_set) != self._devices and part.committed
            else part
            for part in given
        ]

    def _prepare(self, given: Sequence[Any]) -> None:
        """Find the variables, without calculating anything, then be ready to trace for real."""
        with Discovery() as scope:
            jax.eval_shape(lambda given: Results(self._result(given)).arrays, given)
        self._on_replicas = scope.replicas is not None
        self._variables = Variables(list(scope.read.values()), list(scope.written.values()), scope.replicas)
        # The state stays where it is at the next call: were its place left to XLA, the second call could be another.
        place = (None, None if scope.replicas is None else scope.replicas.replicated, None)
        self._jitted = jax.jit(self._traced, donate_argnums=0, out_shardings=place)

    def _traced(
        self, changing: list[jax.Array], kept: list[jax.Array], given: Sequence[Any]
    ) -> tuple[list[Any], list[Any], list[Any]]:
        assert self._variables is not None, "prepared"
        variables = self._variables
        pairs = [*zip(variables.written, changing, strict=True), *zip(variables.kept, kept, strict=True)]
        with _Bound(pairs, variables.written) as scope:
            results = Results(self._result(given))
            state = [_strong(scope.get_current_value(variable)) for variable in variables.written]
        arrays = results.arrays
        self._results = results.without_arrays()
        # Something that is never donated, to tell by when the function is done.
        return arrays, state, [] if arrays else [jnp.zeros(())]

    def _result(self, given: Sequence[Any]) -> Any:
        assert self._call is not None, "traced during a call"
        return self._call(*rebuilt(self._key, given, self._replicas))


def _strong(value: Any) -> jax.Array:
    return jnp.asarray(value, value.dtype)


class _Bound(Inner):
    """The scope of the trace that is compiled: variables that were not found before would be constants."""

    def __init__(self, values: Sequence[tuple[Any, Any]], written: Sequence[Any]) -> None:
        super().__init__(values)
        self._known = {id(variable) for variable, _ in values}
        self._written = {id(variable) for variable in written}

    def first_value(self, variable: Any) -> Any:
        if id(variable) not in self._known:
            raise Missed(variable)
        return super().first_value(variable)

    def add_update(self, update: tuple[Any, Any]) -> None:
        if id(update[0]) not in self._written:
            raise Missed(update[0])
        super().add_update(update)

    def will_write(self, variable: Any) -> bool:
        return id(variable) in self._written
