# SPDX-License-Identifier: Apache-2.0
"""What can go wrong on a host or in a cluster, looked at before a job is started: `stratagem doctor`.

`_examine` runs it: `_host`, `_hardware` and `_devices` look at this host, `_meeting` lets the doctors of all workers
call each other and hand on what each has found (`_report`). The other files judge what was found.
"""

from __future__ import annotations

from stratagem.doctor._check import Check as Check
from stratagem.doctor._check import Diagnosis as Diagnosis
from stratagem.doctor._check import Verdict as Verdict
from stratagem.doctor._examine import Request as Request
from stratagem.doctor._examine import examine as examine

__all__ = ["Check", "Diagnosis", "Request", "Verdict", "examine"]
