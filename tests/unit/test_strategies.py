# SPDX-License-Identifier: Apache-2.0
"""Making strategies, and the small methods that they all have."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import stratagem as distribute
from stratagem._core import env
from stratagem.engines import select
from stratagem.engines.base import Capabilities
from stratagem.errors import (
    ArgumentError,
    ArgumentTypeError,
    ContextError,
    DeviceError,
    LaunchError,
    NotBuiltError,
)
from stratagem.strategies import _mirrored
from stratagem.testing.fake_engine import FakeEngine, FakeVariable


@pytest.fixture(autouse=True)
def fake_engine() -> Iterator[FakeEngine]:
    with select.use(FakeEngine(4)) as engine:
        yield engine


class OneReplicaPerProcess(FakeEngine):
    """What the torch engine says of itself, without its processes."""

    capabilities = Capabilities(many_replicas_per_process=False, traced_functions=False)


@dataclasses.dataclass
class Launcher:
    started: list[int] = dataclasses.field(default_factory=list)

    def __call__(self, replicas: int, *, on_cpu: bool) -> None:
        assert on_cpu
        self.started.append(replicas)


@pytest.fixture
def in_job(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Callable[[int | None], Launcher]]:
    """`in_job(n)`: this process is one of a job of n, or with None of no job yet."""
    launcher = Launcher()
    monkeypatch.setattr(_mirrored, "become_launcher", launcher)

    def enter(world_size: int | None) -> Launcher:
        job = None if world_size is None else env.Job(rank=0, world_size=world_size, directory=tmp_path)
        monkeypatch.setattr(env, "job", lambda: job)
        return launcher

    with select.use(OneReplicaPerProcess(4)):
        yield enter


def test_a_mirrored_strategy_takes_all_devices_or_those_it_is_given() -> None:
    assert distribute.MirroredStrategy().num_replicas_in_sync == 4
    assert distribute.MirroredStrategy(devices=[]).num_replicas_in_sync == 4
    chosen = distribute.MirroredStrategy(["/cpu:3", "/job:localhost/replica:0/task:0/device:CPU:1"])
    assert chosen.extended.devices == ("CPU:3", "CPU:1")
    assert repr(chosen) == "MirroredStrategy(engine=fake, devices=('CPU:3', 'CPU:1'), replicas=2)"
    assert chosen.cluster_resolver is None


@pytest.mark.parametrize(
    ("devices", "error", "text"),
    [
        (["CPU:0", "CPU:9"], DeviceError, "this host has no CPU:9; it has CPU:0, CPU:1, CPU:2, CPU:3"),
        (["GPU:0"], DeviceError, "this host has no GPU:0"),
        (["CPU:0", "/cpu:0"], DeviceError, "CPU:0 is named more than once"),
        (["nonsense"], DeviceError, "'nonsense' is not a device name"),
        ("CPU:0", ArgumentError, "devices='CPU:0' is a string"),
        ([0], ArgumentTypeError, "a device is 0, not a string"),
    ],
)
def test_devices_that_cannot_be_used_are_refused(devices: Any, error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        distribute.MirroredStrategy(devices)


def test_one_device() -> None:
    strategy = distribute.OneDeviceStrategy("/cpu:2")
    assert strategy.extended.worker_devices == ("/job:localhost/replica:0/task:0/device:CPU:2",)
    assert strategy.num_replicas_in_sync == 1
    with pytest.raises(DeviceError, match="this host has no GPU:0"):
        distribute.OneDeviceStrategy("GPU:0")


def test_the_first_process_becomes_the_launcher(in_job: Callable[[int | None], Launcher]) -> None:
    launcher = in_job(None)
    distribute.MirroredStrategy(["CPU:0"])
    assert launcher.started == []
    distribute.MirroredStrategy(["CPU:0", "CPU:2"])
    distribute.MirroredStrategy()
    assert launcher.started == [2, 4]


def test_without_devices_a_job_has_one_for_each_process(in_job: Callable[[int | None], Launcher]) -> None:
    launcher = in_job(2)
    assert distribute.MirroredStrategy().extended.devices == ("CPU:0", "CPU:1")
    in_job(5)
    with pytest.raises(DeviceError, match="this job has 5 processes, but this host has 4 devices"):
        distribute.MirroredStrategy()
    assert launcher.started == []


def test_a_job_of_another_size_is_refused(in_job: Callable[[int | None], Launcher]) -> None:
    in_job(3)
    with pytest.raises(LaunchError, match="MirroredStrategy has 2 replicas, but this job has 3 processes") as caught:
        distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    assert "stratagem run --replicas 2 script.py" in str(caught.value)
    with pytest.raises(LaunchError, match="OneDeviceStrategy has 1 replica, but this job has 3 processes"):
        distribute.OneDeviceStrategy("CPU:0")


@pytest.mark.parametrize(
    "ops",
    [
        distribute.NcclAllReduce(num_packs=2),
        distribute.HierarchicalCopyAllReduce(),
        distribute.ReductionToOneDevice("CPU:0"),
    ],
)
def test_cross_device_ops_reduce_what_the_strategy_would(ops: distribute.CrossDeviceOps) -> None:
    strategy = distribute.MirroredStrategy(["CPU:0", "CPU:1"], cross_device_ops=ops)
    value = strategy.run(lambda: np.float32(3))
    with strategy.scope():
        assert [float(v) for v in ops.reduce("SUM", value, value).values] == [6.0, 6.0]
        assert [float(v) for v in ops.batch_reduce("MEAN", [(value, value)])[0].values] == [3.0, 3.0]
        assert [float(v) for v in ops.broadcast(np.float32(5), value).values] == [5.0, 5.0]
        assert float(ops.reduce("SUM", value, "CPU:0")) == 6.0
    with pytest.raises(ContextError, match=r"CrossDeviceOps.reduce was called where no strategy acts"):
        ops.reduce("SUM", value, value)


def test_cross_device_ops_of_ones_own_reduce_what_the_strategy_is_asked_to() -> None:
    class Doubling(distribute.CrossDeviceOps):
        def reduce_implementation(self, reduce_op: Any, per_replica_value: Any, destinations: Any, options: Any) -> Any:
            reduced = super().reduce_implementation(reduce_op, per_replica_value, destinations, options)
            return distribute.DistributedValues([value * 2 for value in reduced.values])

    strategy = distribute.MirroredStrategy(["CPU:0", "CPU:1"], cross_device_ops=Doubling())
    value = strategy.experimental_distribute_values_from_function(lambda c: np.float32(c.replica_id_in_sync_group + 1))
    assert [float(v) for v in strategy.extended.reduce_to("SUM", value, value).values] == [6.0, 6.0]
    assert [float(v) for v in strategy.extended.batch_reduce_to("SUM", [(value, value)])[0].values] == [3.0, 3.0]
    assert [float(v) for v in strategy.extended.broadcast_to(np.float32(5), value).values] == [5.0, 5.0]


def test_cross_device_ops_that_cannot_be_honoured_are_refused() -> None:
    with pytest.raises(ArgumentTypeError, match="cross_device_ops='x' is not a CrossDeviceOps"):
        distribute.MirroredStrategy(cross_device_ops="x")  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match="accumulation_fn was given"):
        distribute.ReductionToOneDevice(accumulation_fn=sum)
    with pytest.raises(ArgumentError, match="num_packs=-1 is negative"):
        distribute.NcclAllReduce(num_packs=-1)


def test_nccl_on_cpus_says_that_it_is_not_used(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "stratagem"):
        distribute.MirroredStrategy(["CPU:0", "CPU:1"], cross_device_ops=distribute.NcclAllReduce())
    assert "the replicas on CPU:0, CPU:1 reduce without it" in caplog.text
    caplog.clear()
    with select.use(FakeEngine(2, device_type="GPU")):
        distribute.MirroredStrategy(cross_device_ops=distribute.NcclAllReduce())
    assert not caplog.records


def test_the_default_strategy_has_no_devices_and_distributes_nothing() -> None:
    default = distribute.get_strategy()
    data = [1, 2, 3]
    assert default.experimental_distribute_dataset(data) is data
    assert default.num_replicas_in_sync == 1
    for name in ("worker_devices", "parameter_devices"):
        with pytest.raises(ContextError, match="the default strategy does not know its devices"):
            getattr(default.extended, name)


def test_the_default_strategy_is_alone_also_while_the_engine_has_joined_a_job() -> None:
    distribute.MirroredStrategy().run(lambda: None)
    context = distribute.get_replica_context()
    assert context is not None
    assert float(context.all_reduce("SUM", 3.0)) == 3.0
    assert distribute.get_strategy().gather(np.ones(2), axis=0).shape == (2,)


@pytest.mark.parametrize(
    ("name", "args"),
    [
        ("configure", ()),
        ("make_dataset_iterator", ([],)),
        ("make_input_fn_iterator", (list,)),
        ("experimental_run", (list,)),
        ("update_config_proto", (None,)),
    ],
)
def test_what_belongs_to_tensorflow_1_says_so(name: str, args: tuple[Any, ...]) -> None:
    with pytest.raises(NotBuiltError, match=f"Strategy.{name} belongs to TensorFlow 1"):
        getattr(distribute.MirroredStrategy(), name)(*args)


def test_older_names_do_what_the_newer_do() -> None:
    strategy = distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    value = strategy.run(lambda: 1)
    assert strategy.unwrap(value) == strategy.experimental_local_results(value) == (1, 1)
    assert strategy.group(value) is None
    with strategy.scope(), strategy.colocate_vars_with(FakeVariable(1.0)):
        assert distribute.get_strategy() is strategy


def test_extended_updates_each_copy_of_a_variable() -> None:
    strategy = distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    variables = distribute.DistributedValues([FakeVariable(1.0), FakeVariable(2.0)])
    gradients = strategy.experimental_distribute_values_from_function(lambda c: c.replica_id_in_sync_group + 1.0)

    def add(variable: FakeVariable, gradient: float, scale: float) -> float:
        assert distribute.in_cross_replica_context()
        variable.assign(variable.value + gradient * scale)
        return float(variable.value)

    update: Any = strategy.extended.update
    results = update(variables, add, args=(gradients,), kwargs={"scale": 10.0}, group=False)
    assert results == (11.0, 22.0)
    assert update(variables, add, args=(gradients, 1.0)).values == (12.0, 24.0)
    assert strategy.extended.value_container(variables) is variables
    with pytest.raises(ContextError, match=r"extended.update was called inside a function"):
        strategy.run(lambda: update(variables, add, args=(1.0, 1.0)))
    assert not strategy.extended.variable_created_in_scope(variables)


def test_broadcast_is_for_cross_replica_code() -> None:
    strategy = distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    for call in (
        lambda: strategy.extended.broadcast_to(1.0, "CPU:0"),
        lambda: strategy.extended.reduce_to("SUM", 1.0, "CPU:0"),
    ):
        with pytest.raises(ContextError, match=r"extended\.\w+ was called inside a function"):
            strategy.run(call)


def test_options_are_checked() -> None:
    context = distribute.InputContext(2, 1, 4)
    assert context.get_per_replica_batch_size(8) == 2
    assert repr(context) == "InputContext(num_input_pipelines=2, input_pipeline_id=1, num_replicas_in_sync=4)"
    with pytest.raises(ArgumentError, match="a global batch of 6 rows is not divisible by 4 replicas") as caught:
        context.get_per_replica_batch_size(6)
    assert "batch by 4 or 8 rows" in str(caught.value)
    with pytest.raises(ArgumentError, match="batch by 4 rows"):
        context.get_per_replica_batch_size(3)
    options = distribute.experimental.CommunicationOptions
    assert repr(options(1, 2.0, "nccl")) == (
        "CommunicationOptions(bytes_per_pack=1, timeout_seconds=2.0, implementation=NCCL)"
    )
    assert isinstance(distribute.experimental.CollectiveHints(5), options)
    with pytest.raises(ArgumentError, match="bytes_per_pack=-1 is negative"):
        options(bytes_per_pack=-1)
    with pytest.raises(ArgumentError, match="timeout_seconds=0 is not positive"):
        options(timeout_seconds=0)
    with pytest.raises(ArgumentError, match="implementation='mpi' is not one of AUTO, RING, NCCL"):
        options(implementation="mpi")
    value = distribute.experimental.ValueContext(1, 2)
    assert repr(value) == "ValueContext(replica_id_in_sync_group=1, num_replicas_in_sync=2)"
