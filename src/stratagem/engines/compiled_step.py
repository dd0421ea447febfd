# SPDX-License-Identifier: Apache-2.0
"""What is known of a training step that was compiled for devices that need not be there."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass

from stratagem.errors import ArgumentError, StratagemError

__all__ = ["Collective", "CompiledStep", "Memory", "readable", "refusal_to_json"]

_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")


@dataclass(frozen=True, kw_only=True)
class Collective:
    """The collectives of one kind in a compiled step.

    Attributes:
        kind: As XLA names it, such as "all-reduce".
        count: How many there are.
        num_bytes: The size of their results on one device, so what travels in one step.
    """

    kind: str
    count: int
    num_bytes: int


@dataclass(frozen=True, kw_only=True)
class Memory:
    """What a step needs of one device's memory, in bytes.

    Attributes:
        arguments: The model's state and this device's rows.
        outputs: The new state and the logs.
        aliased: The part of the outputs that lies where arguments lay.
        temporaries: Activations, gradients and the like.
        code: The program.
    """

    arguments: int
    outputs: int
    aliased: int
    temporaries: int
    code: int

    @property
    def total(self) -> int:
        """All that is held at once."""
        return self.arguments + self.outputs - self.aliased + self.temporaries + self.code


@dataclass(frozen=True, kw_only=True)
class CompiledStep:
    """A training step, compiled ahead of time; `print` it for a summary.

    Attributes:
        topology: What it was compiled for, such as "v5e:2x4".
        num_devices: The replicas that take part.
        device_noun: "chip", or "core" where a chip has several devices.
        global_batch: Rows of one step over all replicas.
        lower_seconds: How long tracing and lowering took.
        compile_seconds: How long compiling took.
        hbm_bytes: The memory of one device: the part that the compiler may use, where it has said, else all of it.
        needed_bytes: What the step needs of it.
        memory: The parts of that, or None if the compiler stopped because it does not fit.
        collectives: What the devices exchange; nothing is known of it if `memory` is None.
    """

    topology: str
    num_devices: int
    device_noun: str
    global_batch: int
    lower_seconds: float
    compile_seconds: float
    hbm_bytes: int
    needed_bytes: int
    memory: Memory | None
    collectives: tuple[Collective, ...]

    @property
    def fits(self) -> bool:
        """Whether one device's memory is enough."""
        return self.excess_bytes == 0

    @property
    def excess_bytes(self) -> int:
        """How much memory a device lacks."""
        return max(0, self.needed_bytes - self.hbm_bytes)

    def to_json(self) -> str:
        """All of it as one JSON object, with what follows from it."""
        derived: dict[str, object] = {"fits": self.fits, "excess_bytes": self.excess_bytes}
        return json.dumps(asdict(self) | derived, indent=2)

    @classmethod
    def from_json(cls, text: str) -> CompiledStep:
        """What `to_json` wrote.

        Raises:
            ArgumentError: `refusal_to_json` wrote it: the step can't be compiled.
        """
        parts = json.loads(text)
        if "problem" in parts:
            raise ArgumentError(parts["problem"], parts["fix"])
        del parts["fits"], parts["excess_bytes"]
        memory = parts.pop("memory")
        collectives = parts.pop("collectives")
        return cls(
            **parts,
            memory=None if memory is None else Memory(**memory),
            collectives=tuple(Collective(**collective) for collective in collectives),
        )

    def __str__(self) -> str:
        noun = self.device_noun
        rows = self.global_batch // self.num_devices
        lines = [
            f"{self.topology}: {self.num_devices} {noun}s, a global batch of {self.global_batch}: {rows} rows a {noun}",
            f"compiled in {self.compile_seconds:.1f} s, after {self.lower_seconds:.1f} s of tracing and lowering",
        ]
        if self.memory is not None:
            lines += [*self._collective_lines(), *_memory_lines(self.memory, noun)]
        needs = f"a {noun} needs {readable(self.needed_bytes)} and has {readable(self.hbm_bytes)}"
        lines.append(
            f"it fits: {needs}" if self.fits else f"it does not fit: {needs}, {readable(self.excess_bytes)} too little"
        )
        return "\n".join(lines)

    def _collective_lines(self) -> list[str]:
        if not self.collectives:
            return ["no collectives"]
        return [
            "collectives of one step:",
            *(f"  {c.kind:<18} {c.count:>5} x {readable(c.num_bytes):>12} in all" for c in self.collectives),
        ]


def refusal_to_json(error: StratagemError) -> str:
    """Why a step can't be compiled, in the place of `CompiledStep.to_json`."""
    return json.dumps({"problem": error.problem, "fix": error.fix})


def readable(num_bytes: int) -> str:
    """A size in the unit that suits it.

    >>> readable(17039872)
    '16.3 MiB'
    """
    power = min(len(_UNITS) - 1, max(0, (num_bytes.bit_length() - 1) // 10))
    return f"{num_bytes / 1024**power:.{1 if power else 0}f} {_UNITS[power]}"


def _memory_lines(memory: Memory, noun: str) -> list[str]:
    rows = (
        ("arguments", memory.arguments, "the state and the rows of the batch"),
        ("outputs", memory.outputs, f"{readable(memory.aliased)} of them lie where arguments lay"),
        ("temporaries", memory.temporaries, "activations and gradients"),
        ("program", memory.code, ""),
    )
    return [f"memory of a {noun}:", *(f"  {name:<12} {readable(n):>12}  {note}".rstrip() for name, n, note in rows)]
