# SPDX-License-Identifier: Apache-2.0
"""D01 to D05: what the doctor says of one host, from facts."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from stratagem.doctor import Verdict, _hardware, _host
from stratagem.doctor._hardware import Hardware, Seen
from stratagem.errors import BackendError

CPU = Seen(devices=("CPU:0",))
CUDA_ON_CPU = Seen(devices=("CPU:0",), built_for="CUDA 13.0")
GPUS = Hardware(num_gpus=2, driver="580.1")


def test_a_package_that_is_missing_fails_the_versions() -> None:
    check = _host.versions_check({"python": "3.12.1", "keras": "", "numpy": "2.1"})
    assert (check.verdict, check.text, check.fix) == (Verdict.FAILED, "keras is not installed", "pip install keras")


def test_the_versions_are_those_of_the_backend() -> None:
    assert {"python", "stratagem", "keras", "numpy", "torch"} == set(_host.versions("torch"))
    assert {"jax", "jaxlib"} < set(_host.versions("jax"))


def test_a_backend_that_no_engine_drives_fails_its_check(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KERAS_BACKEND", "tensorflow")
    chosen = _host.chosen_backend(None)
    assert isinstance(chosen, BackendError)
    check = _host.backend_check(chosen)
    assert check.verdict is Verdict.FAILED
    assert "the Keras backend is 'tensorflow'" in check.text


def test_a_backend_that_the_program_would_not_use_is_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KERAS_BACKEND", "torch")
    assert _host.backend_check("torch").verdict is Verdict.OK
    check = _host.backend_check("jax")
    assert check.verdict is Verdict.WARNING
    assert check.fix == "export KERAS_BACKEND=jax, or start with: stratagem run --backend jax"


@pytest.mark.parametrize(
    ("cores", "quota", "threads", "verdict", "text"),
    [
        (8, None, None, Verdict.OK, "8 cores, and OMP_NUM_THREADS is not set"),
        (8, None, "8", Verdict.OK, "8 cores, and OMP_NUM_THREADS is 8"),
        (8, None, "4,2", Verdict.OK, "OMP_NUM_THREADS is 4,2"),
        (1, None, "1", Verdict.OK, "1 core, and OMP_NUM_THREADS is 1"),
        (8, None, "16", Verdict.WARNING, "take turns"),
        (8, None, "1", Verdict.WARNING, "uses one core"),
        (8, None, "many", Verdict.FAILED, "OMP_NUM_THREADS='many' is not a number"),
        (64, 4.0, None, Verdict.WARNING, "64 cores, of which this container may use 4"),
        (64, 4.0, "4", Verdict.OK, "OMP_NUM_THREADS is 4"),
        (64, 0.5, "1", Verdict.OK, "may use 0.5"),
    ],
)
def test_threads_are_compared_with_the_cores_that_there_are(
    cores: int, quota: float | None, threads: str | None, verdict: Verdict, text: str
) -> None:
    check = _host.threads_check(cores, quota, threads)
    assert (check.verdict, text in check.text) == (verdict, True), check


def test_little_shared_memory_is_a_warning() -> None:
    assert _host.room_check(2**33, 2**32).verdict is Verdict.OK
    check = _host.room_check(64 * 2**20, 60 * 2**20)
    assert check.verdict is Verdict.WARNING
    assert check.text.startswith("only 60 MiB of 64 MiB are free in /dev/shm")
    assert "--shm-size=8g" in str(check.fix)


@pytest.mark.parametrize(
    ("backend", "hardware", "seen", "environ", "verdict", "text"),
    [
        ("torch", Hardware(), CPU, {}, Verdict.OK, "CPU:0"),
        (
            "torch",
            GPUS,
            Seen(devices=("GPU:0 H200", "GPU:1 H200"), platform="gpu", built_for="CUDA 13.0"),
            {},
            Verdict.OK,
            "GPU:0 H200, GPU:1 H200; driver 580.1; torch for CUDA 13.0",
        ),
        ("torch", GPUS, CPU, {}, Verdict.FAILED, "the torch that is installed is for the CPU alone"),
        ("jax", GPUS, CPU, {}, Verdict.FAILED, "the jax that is installed is for the CPU alone"),
        ("torch", GPUS, CUDA_ON_CPU, {"CUDA_VISIBLE_DEVICES": ""}, Verdict.WARNING, "CUDA_VISIBLE_DEVICES='' hides"),
        ("torch", GPUS, CUDA_ON_CPU, {"CUDA_VISIBLE_DEVICES": "-1"}, Verdict.WARNING, "hides them"),
        ("torch", GPUS, CUDA_ON_CPU, {"CUDA_VISIBLE_DEVICES": "7"}, Verdict.WARNING, "hides them"),
        ("jax", GPUS, CUDA_ON_CPU, {"JAX_PLATFORMS": "cpu"}, Verdict.WARNING, "JAX_PLATFORMS='cpu' leaves them out"),
        ("torch", GPUS, CUDA_ON_CPU, {"JAX_PLATFORMS": "cpu"}, Verdict.FAILED, "torch is for CUDA 13.0"),
        ("torch", Hardware(num_gpus=1), CUDA_ON_CPU, {}, Verdict.FAILED, "the driver does not answer"),
        ("torch", GPUS, CUDA_ON_CPU, {"CUDA_VISIBLE_DEVICES": "1"}, Verdict.FAILED, "the driver is 580.1"),
        ("jax", Hardware(num_tpus=4, libtpu=True), CPU, {"JAX_PLATFORMS": "cpu"}, Verdict.WARNING, "leaves them out"),
        ("torch", Hardware(num_tpus=4, libtpu=True), CPU, {}, Verdict.WARNING, "only the jax backend drives TPUs"),
        ("jax", Hardware(num_tpus=4, libtpu=True), CPU, {}, Verdict.FAILED, "this host has 4 TPU chips, but jax"),
        ("jax", Hardware(num_tpus=4), CPU, {}, Verdict.FAILED, "libtpu is not installed"),
        ("jax", Hardware(), Seen(problem="no libcudart"), {}, Verdict.FAILED, "jax does not start: no libcudart"),
    ],
)
def test_an_accelerator_that_is_not_used_is_told_with_its_reason(
    backend: str, hardware: Hardware, seen: Seen, environ: Mapping[str, str], verdict: Verdict, text: str
) -> None:
    check = _hardware.devices_check(backend, hardware, seen, environ)
    assert (check.verdict, text in check.text) == (verdict, True), check
    assert (check.fix is None) == (verdict is Verdict.OK)
