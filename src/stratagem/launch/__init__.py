# SPDX-License-Identifier: Apache-2.0
"""How the processes of a job are planned, started, watched and ended. No framework is loaded here.

`_plan` and `_workers` decide, `_job` starts and ends processes, `_supervise` runs a job in the foreground
(`stratagem run`, and `become_launcher` for a plain `python script.py`), `_pool` one that functions are sent to
(`launch` and tests).
The module can be called: `stratagem.launch(fn, replicas=2)` is `stratagem.launch.launch(fn, replicas=2)`.
"""

from __future__ import annotations

import sys

from stratagem._core.lazy import CallableModule
from stratagem.launch._become import become_launcher as become_launcher
from stratagem.launch._environment import choose_backend as choose_backend
from stratagem.launch._environment import set_backend as set_backend
from stratagem.launch._environment import set_cpu_devices as set_cpu_devices
from stratagem.launch._environment import set_variables as set_variables
from stratagem.launch._environment import variable_unless_set as variable_unless_set
from stratagem.launch._hardware import num_cores as num_cores
from stratagem.launch._hardware import num_gpus as num_gpus
from stratagem.launch._launch import launch as launch
from stratagem.launch._plan import Placement as Placement
from stratagem.launch._plan import Plan as Plan
from stratagem.launch._plan import ProcessPlan as ProcessPlan
from stratagem.launch._plan import place as place
from stratagem.launch._plan import plan as plan
from stratagem.launch._pool import ReplicaPool as ReplicaPool
from stratagem.launch._supervise import supervise as supervise
from stratagem.launch._workers import free_ports as free_ports
from stratagem.launch._workers import plan_task as plan_task
from stratagem.launch._workers import plan_workers as plan_workers

__all__ = [
    "Placement",
    "Plan",
    "ProcessPlan",
    "ReplicaPool",
    "become_launcher",
    "choose_backend",
    "free_ports",
    "launch",
    "num_cores",
    "num_gpus",
    "place",
    "plan",
    "plan_task",
    "plan_workers",
    "set_backend",
    "set_cpu_devices",
    "set_variables",
    "supervise",
    "variable_unless_set",
]

sys.modules[__name__].__class__ = CallableModule
