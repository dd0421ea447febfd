# SPDX-License-Identifier: Apache-2.0
"""What a mismatch of collectives says."""

from __future__ import annotations

import pickle
from dataclasses import replace
from typing import Any

import pytest
import torch

from stratagem._core.enums import Reduction
from stratagem.engines.torch import _autograd
from stratagem.engines.torch._header import Header, callers_line, check_agreement, describe, specs_of
from stratagem.engines.torch._local import LocalTransport
from stratagem.errors import CollectiveMismatchError, StructureMismatchError

pytestmark = pytest.mark.timeout(30)

ONE = (torch.float32, (3,))


def header(operation: str = "all_reduce(SUM)", *specs: Any, **options: Any) -> Header:
    return Header(operation, specs, options.pop("where", "train.py:7"), **options)


def test_a_header_reads_as_a_sentence_part() -> None:
    assert str(header("barrier('a')")) == "barrier('a') at train.py:7"
    assert str(header("all_reduce(SUM)", ONE, run=3)) == (
        "all_reduce(SUM) of float32[3] at train.py:7 in call 3 of strategy.run"
    )
    assert str(header("broadcast", *[ONE] * 6, where="")) == (
        "broadcast of float32[3], float32[3], float32[3], float32[3], and 2 more"
    )


def test_tensors_are_described_by_dtype_and_shape() -> None:
    assert describe(torch.bfloat16, ()) == "bfloat16[]"
    assert specs_of([torch.zeros(2, 0, dtype=torch.int64)]) == ((torch.int64, (2, 0)),)


def test_a_header_crosses_processes_unchanged() -> None:
    original = header("all_gather(axis=1)", ONE, free_axis=0, run=2, source=1)
    assert pickle.loads(pickle.dumps(original)) == original


def test_headers_that_fit_are_let_through() -> None:
    check_agreement([header("sum", ONE), header("sum", ONE, where="other.py:1")])
    check_agreement([header("gather", ONE, free_axis=0), header("gather", (torch.float32, (9,)), free_axis=0)])
    check_agreement([header("gather", (torch.float32, (2, 3)), free_axis=-1)] * 2)
    check_agreement([header("from_source(1)", source=1), header("from_source(1)", ONE, source=1)])
    check_agreement([header("sum", ONE, details="mine"), header("sum", ONE, details="theirs")])


@pytest.mark.parametrize(
    ("others", "error", "text"),
    [
        (
            [header("all_gather(axis=0)", ONE, where="b.py:2")],
            CollectiveMismatchError,
            "of float32[3] at train.py:7, while replica 1 called all_gather(axis=0) of float32[3] at b.py:2",
        ),
        (
            [header("all_reduce(SUM)", ONE), header("all_reduce(SUM)", ONE, run=1)],
            CollectiveMismatchError,
            "while replica 2 called all_reduce(SUM) of float32[3] at train.py:7 in call 1 of strategy.run",
        ),
        (
            [header("all_reduce(SUM)", (torch.int32, (3,)), where="b.py:2")],
            StructureMismatchError,
            "in all_reduce(SUM), replica 0 has float32[3] (at train.py:7) but replica 1 has int32[3] (at b.py:2)",
        ),
        ([header("all_reduce(SUM)")], StructureMismatchError, "but replica 1 has no tensor (at train.py:7)"),
    ],
)
def test_headers_that_do_not_fit_name_both_sides(others: list[Header], error: type[Exception], text: str) -> None:
    with pytest.raises(error) as caught:
        check_agreement([header("all_reduce(SUM)", ONE), *others])
    assert text in str(caught.value)


def test_a_gather_names_the_axis_that_may_differ() -> None:
    mine, theirs = (header("all_gather(axis=0)", (torch.float32, (2, n)), free_axis=0) for n in (3, 4))
    with pytest.raises(StructureMismatchError, match="differ in size along axis 0 only"):
        check_agreement([mine, theirs])


class Spy(LocalTransport):
    """Notes from where its reductions are called."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def _all_reduce(self, header: Header, *args: Any) -> list[torch.Tensor]:
        self.lines.append(header.where)
        return super()._all_reduce(header, *args)


def test_the_users_line_is_found_behind_our_own_code() -> None:
    spy = Spy()
    here = callers_line()
    spy.all_reduce(Reduction.SUM, [torch.ones(2)])
    file, number = here.split(":")
    assert spy.lines == [f"{file}:{int(number) + 1}"]
    assert file == "test_header.py"


def test_the_line_of_a_backward_pass_is_the_users_not_torchs() -> None:
    spy = Spy()
    (y,) = _autograd.all_reduce(spy, Reduction.SUM, [torch.ones(2, requires_grad=True)])
    here = callers_line()
    y.sum().backward()
    file, number = here.split(":")
    assert spy.lines[-1] == f"{file}:{int(number) + 1}"


def test_digests_are_equal_for_headers_that_agree_whatever_line_called_them() -> None:
    header = Header("all_reduce(SUM)", ((torch.float32, (3,)),), "a.py:1")
    assert header.digest() == replace(header, where="b.py:2").digest()
    others = (
        replace(header, operation="all_reduce(MEAN)"),
        replace(header, specs=((torch.float32, (4,)),)),
        replace(header, specs=((torch.float64, (3,)),)),
        replace(header, run=1),
        replace(header, free_axis=0),
        replace(header, source=0),
    )
    assert len({header.digest(), *(other.digest() for other in others)}) == 1 + len(others)
    assert all(0 <= number < 2**62 for number in header.digest())
