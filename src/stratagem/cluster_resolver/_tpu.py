# SPDX-License-Identifier: Apache-2.0
"""The TPU of this machine: `tf.distribute.cluster_resolver.TPUClusterResolver`."""

from __future__ import annotations

import logging
import socket
from typing import NoReturn

from stratagem._core import env
from stratagem.cluster_resolver import _tpu_hardware
from stratagem.cluster_resolver._base import ClusterResolver
from stratagem.cluster_resolver._cluster_spec import ClusterSpec
from stratagem.cluster_resolver._tpu_hardware import Hardware
from stratagem.cluster_resolver._tpu_topology import HardwareFeature, Topology, TPUSystemMetadata
from stratagem.errors import ArgumentError, ArgumentTypeError, DeviceError

__all__ = ["TPUClusterResolver"]

_logger = logging.getLogger(__name__)

_ON_CPU = "the same script runs on CPU devices with: stratagem run --backend jax --cpu-devices 8 script.py"
_HERE = (None, "", "local")
# Set on the hosts of a TPU by Google Cloud.
_NAME, _HOSTS, _HOST_ID = "TPU_NAME", "TPU_WORKER_HOSTNAMES", "TPU_WORKER_ID"


class TPUClusterResolver(ClusterResolver):
    """Finds the TPU that is attached to this machine; there is no other, as JAX drives TPUs from their own VM.

    Where CPU devices were asked for (`stratagem run --cpu-devices 8`, STRATAGEM_CPU_DEVICES=8), they stand in for the
    TPU's chips, whatever `tpu` says.

    Args:
        tpu: None, "" or "local" for the TPU of this VM; its name is taken as well.
        zone: Nothing is looked up in Google Cloud, so this is not used; so are the next two arguments of its API.
        project: Not used.
        job_name: The job's name in `cluster_spec`.
        coordinator_name: A job of its own for a coordinator, which `coordinator_address` has to be given for.
        coordinator_address: The coordinator's address.
        credentials: Not used.
        service: Not used.
        discovery_url: Not used.

    Raises:
        DeviceError: no TPU is attached, as a ValueError, so that `try: ... except ValueError:` falls back as it does
            with TensorFlow; or `tpu` is one that this VM can't reach.
    """

    def __init__(
        self,
        tpu: str | None = None,
        zone: str | None = None,
        project: str | None = None,
        job_name: str = "worker",
        coordinator_name: str | None = None,
        coordinator_address: str | None = None,
        credentials: object = "default",
        service: object = None,
        discovery_url: str | None = None,
    ) -> None:
        del zone, project, credentials, service, discovery_url
        if tpu is not None and not isinstance(tpu, str):
            raise ArgumentTypeError(f"tpu={tpu!r} is not a string", fix='tpu="local", or leave it out')
        if bool(coordinator_name) != bool(coordinator_address):
            raise ArgumentError(
                f"coordinator_name={coordinator_name!r} and coordinator_address={coordinator_address!r} go together",
                fix="give both, or neither: JAX starts its own coordinator",
            )
        self._cpu_devices = env.cpu_devices()
        if self._cpu_devices is None:
            _check(tpu, _tpu_hardware.look(env.inherited()))
        self._job_name = job_name
        self._coordinator: dict[str, list[str]] = {}
        if coordinator_name and coordinator_address:
            self._coordinator[coordinator_name] = [coordinator_address]
        self._topology: Topology | None = None

    @staticmethod
    def connect(tpu: str | None = None, zone: str | None = None, project: str | None = None) -> TPUClusterResolver:
        """The resolver; JAX connects to the TPU when it is first used.

        Args:
            tpu: As for the class.
            zone: Not used.
            project: Not used.
        """
        return TPUClusterResolver(tpu, zone, project)

    def cluster_spec(self) -> ClusterSpec:
        """The hosts of the TPU."""
        hosts = [host for host in env.inherited().get(_HOSTS, "").split(",") if host]
        return ClusterSpec({self._job_name: hosts or [socket.gethostname()], **self._coordinator})

    def master(self, task_type: str | None = None, task_id: int | None = None, rpc_layer: str | None = None) -> str:
        """ "": there is no session to connect to, as with TensorFlow's "local".

        Args:
            task_type: Not used.
            task_id: Not used.
            rpc_layer: Not used.
        """
        del task_type, task_id, rpc_layer
        return ""

    def get_master(self) -> str:
        """The same as `master()`."""
        return self.master()

    def get_job_name(self) -> str:
        """The job's name."""
        return self._job_name

    def get_coordination_service_leader(self) -> str:
        """The task that leads: the first."""
        return f"/job:{self._job_name}/task:0"

    def num_accelerators(
        self, task_type: str | None = None, task_id: int | None = None, config_proto: object = None
    ) -> dict[str, int]:
        """How many devices this host has: {"TPU": 8}.

        Before `tpu.experimental.initialize_tpu_system` these are the chips that the machine shows, and after it the
        devices that JAX makes of them: two a chip for v2, v3 and TPU7x.

        Args:
            task_type: Not used; all hosts of a TPU are alike.
            task_id: Not used.
            config_proto: TensorFlow 1 only, and not used.
        """
        del task_type, task_id, config_proto
        if self._topology is not None:
            return {"TPU": self._topology.num_tpus_per_task}
        return {"TPU": self._cpu_devices or _tpu_hardware.look(env.inherited()).num_chips}

    def get_tpu_system_metadata(self) -> TPUSystemMetadata:
        """The numbers of hosts and devices."""
        per_host = self.num_accelerators()["TPU"]
        hosts = self.cluster_spec().num_tasks(self._job_name)
        kind = "CPU" if self._cpu_devices else "TPU"
        return TPUSystemMetadata(
            num_cores=hosts * per_host,
            num_hosts=hosts,
            num_of_cores_per_host=per_host,
            topology=self._topology,
            devices=tuple(
                f"/job:{self._job_name}/replica:0/task:{task}/device:{kind}:{index}"
                for task in range(hosts)
                for index in range(per_host)
            ),
        )

    def set_tpu_topology(self, serialized_tpu_topology: bytes) -> None:
        """Take what `Topology.serialized()` gave; `tpu.experimental.initialize_tpu_system` does.

        Args:
            serialized_tpu_topology: The bytes.
        """
        self._topology = Topology(serialized_tpu_topology)

    @property
    def tpu_hardware_feature(self) -> HardwareFeature | None:
        """What the hardware offers, once the topology is known."""
        return None if self._topology is None else HardwareFeature()

    @property
    def task_type(self) -> str:
        """The job's name."""
        return self._job_name

    @property
    def task_id(self) -> int:
        """This host's number among those of the TPU."""
        return int(env.inherited().get(_HOST_ID) or 0)

    @property
    def stands_in(self) -> bool:
        """Whether CPU devices stand in for the TPU (not in `tf.distribute`)."""
        return self._cpu_devices is not None

    def __repr__(self) -> str:
        return f"TPUClusterResolver(hosts={self.cluster_spec().job_tasks(self._job_name)}, {self.num_accelerators()})"


def _check(tpu: str | None, hardware: Hardware) -> None:
    if tpu not in _HERE and "://" in str(tpu):
        _cannot_reach(f"the TPU at {tpu!r}", hardware)
    own_name = env.inherited().get(_NAME)
    if tpu not in _HERE and (not hardware.num_chips or own_name not in (None, "", tpu)):
        _cannot_reach(f"the TPU {tpu!r}", hardware)
    if not hardware.num_chips:
        raise DeviceError(f"no TPU is attached to this machine. Looked for: {hardware}", fix=_ON_CPU)
    if not hardware.libtpu:
        raise DeviceError(
            f"this machine has {hardware.num_chips} TPU chips, but libtpu, which drives them, is not installed",
            fix="pip install 'stratagem[tpu]'",
        )
    if tpu not in _HERE:
        _logger.warning("tpu=%r is taken to be the TPU of this machine", tpu)


def _cannot_reach(what: str, hardware: Hardware) -> NoReturn:
    raise DeviceError(
        f"{what} can't be reached: JAX drives a TPU from the VM that it is attached to, not over the network. "
        f"Looked for here: {hardware}",
        fix=f'run the script on that VM with TPUClusterResolver("local"); {_ON_CPU}',
    )
