# SPDX-License-Identifier: Apache-2.0
"""What is used of Keras's inside stands in two tables, and still is what it is used as in this version of Keras."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import torch
from keras.src.backend.common.name_scope import current_path

from stratagem import keras_fit
from stratagem.keras_fit import _internals as shared
from stratagem.keras_fit._internals import Internal
from stratagem.keras_fit._jax import _internals as of_jax
from stratagem.keras_fit._torch import _internals as of_torch
from stratagem.keras_fit._torch._hooks import HOOKS
from tests.keras_tables import Checks

pytestmark = [
    pytest.mark.timeout(60),
    # Keras's own variables, about numpy 2.
    pytest.mark.filterwarnings("ignore:__array__ implementation doesn't accept a copy keyword:DeprecationWarning"),
]

# tests/on_jax checks those of jax.
INTERNALS = (*shared.INTERNALS, *of_torch.INTERNALS)
FOLDER = Path(keras_fit.__file__).parent
X, Y = np.ones((4, 2), np.float32), np.ones((4, 1), np.float32)

CHECKS = Checks()
check = CHECKS.of


def model_of(*layers: Any, **options: Any) -> Any:
    model = keras.Sequential([keras.Input((2,)), *(layers or (keras.layers.Dense(1),))])
    model.compile(**{"optimizer": "sgd", "loss": "mse", **options})
    return model


@pytest.mark.parametrize("internal", INTERNALS, ids=lambda internal: f"{internal.owner}.{internal.name}")
def test_an_internal_name_is_what_it_is_used_as(internal: Internal) -> None:
    CHECKS[internal.owner, internal.name]()


def test_every_row_is_checked_and_has_its_reason() -> None:
    rows = [(internal.owner, internal.name) for internal in INTERNALS]
    assert sorted(rows) == sorted(CHECKS), "one row for each check"
    assert all(row.reason for row in (*INTERNALS, *HOOKS))


@check("keras.src.backend.common.name_scope", "current_path")
def _a_variable_of_a_layer_has_its_owners_name() -> None:
    found: list[str] = []

    class Layer(keras.layers.Layer):
        def build(self, _: Any) -> None:
            found.append(current_path())

    Layer(name="mine").build((1,))
    assert found == ["mine"]
    assert not current_path()


@check("keras.Variable", "_value")
def _a_variables_tensor_stays_in_its_place() -> None:
    variable = keras.Variable([1.0, 2.0])
    memory = torch.zeros(4)
    variable._value.data = memory[1:3].copy_(variable._value.detach())
    variable.assign([3.0, 4.0])
    assert memory.tolist() == [0.0, 3.0, 4.0, 0.0]
    assert variable.value.tolist() == [3.0, 4.0]
    assert variable.value.data_ptr() == memory[1:].data_ptr()


@check("keras.Model", "_call_has_training_arg")
def _a_model_knows_whether_its_call_takes_training() -> None:
    class Without(keras.Model):
        def call(self, x: Any) -> Any:
            return x

    class With(keras.Model):
        def call(self, x: Any, training: bool = False) -> Any:
            return x

    assert not Without()._call_has_training_arg
    assert With()._call_has_training_arg
    assert model_of()._call_has_training_arg


@check("keras.Model", "_compile_loss")
def _the_losses_of_outputs_have_trackers() -> None:
    inputs = keras.Input((2,))
    model = keras.Model(inputs, {"a": keras.layers.Dense(1)(inputs), "b": keras.layers.Dense(1)(inputs)})
    assert getattr(model, "_compile_loss", None) is None
    model.compile("sgd", {"a": "mse", "b": "mse"})
    model.train_on_batch(X, {"a": Y, "b": Y})
    assert [type(metric) for metric in model._compile_loss.metrics] == [keras.metrics.Mean] * 2
    assert set(map(id, model._compile_loss.metrics)) < set(map(id, model.metrics))


@check("keras.Model", "_compile_metrics")
def _the_metrics_of_compile_are_updated_together() -> None:
    model = model_of(metrics=["mae"])
    model.train_on_batch(X, Y)
    model.reset_metrics()
    model._compile_metrics.update_state(torch.ones(3, 1), torch.zeros(3, 1), None)
    assert float(model.get_metrics_result()["mae"]) == 1.0
    assert model_of()._compile_metrics is None


@check("keras.Model", "_compute_loss")
def _compute_loss_is_called_as_its_class_wrote_it() -> None:
    calls: list[str] = []

    class Old(keras.Model):
        def compute_loss(self, x: Any = None, y: Any = None, y_pred: Any = None, sample_weight: Any = None) -> Any:
            calls.append("old")
            return y_pred.sum()

    class New(keras.Model):
        def compute_loss(
            self, x: Any = None, y: Any = None, y_pred: Any = None, sample_weight: Any = None, training: bool = True
        ) -> Any:
            calls.append(f"new {training}")
            return y_pred.sum()

    for kind in (Old, New):
        model: Any = kind()
        model.compile("sgd", "mse")
        loss = model._compute_loss(x=None, y=None, y_pred=torch.ones(2), sample_weight=None, training=False)
        assert float(loss) == 2.0
    assert calls == ["old", "new False"]


@check("keras.Model", "_flatten_layers")
def _nested_layers_are_all_found() -> None:
    inner = keras.Sequential([keras.layers.Dense(2), keras.layers.BatchNormalization()])
    model = model_of(inner, keras.layers.Dense(1))
    found = list(model._flatten_layers())
    assert {id(model), id(inner), *map(id, inner.layers), id(model.layers[-1])} <= set(map(id, found))


@check("keras.Model", "_loss_tracker")
def _the_loss_is_a_mean_and_absent_before_compile() -> None:
    model = model_of()
    assert type(model._loss_tracker) is keras.metrics.Mean
    assert model._loss_tracker is model.metrics[0]
    assert {"total", "count"} == {variable.name for variable in model._loss_tracker.variables}
    assert keras.Sequential([keras.layers.Dense(1)])._loss_tracker is None


@check("keras.Layer", "_non_trainable_variables")
def _a_layers_own_state_is_without_frozen_weights() -> None:
    layer = keras.layers.BatchNormalization()
    layer.build((None, 3))
    layer.trainable = False
    assert [variable.name for variable in layer._non_trainable_variables] == ["moving_mean", "moving_variance"]
    assert len(layer.non_trainable_variables) == 4


@check("keras.metrics.MeanMetricWrapper", "_fn")
def _a_wrapped_function_is_found() -> None:
    def mine(y_true: Any, y_pred: Any) -> Any:
        return y_pred

    assert keras.metrics.MeanMetricWrapper(mine)._fn is mine
    assert keras.metrics.CategoricalAccuracy()._fn.__module__.startswith("keras.src.")
    assert keras.metrics.AUC.update_state.__module__.startswith("keras.src.metrics.")


@check("keras.src.losses.loss", "apply_mask")
def _a_mask_becomes_weights_that_keras_divides_by() -> None:
    from keras.src.losses import loss

    weights = loss.apply_mask(None, torch.tensor([True, False]), dtype="float32", reduction="mean_with_sample_weight")
    assert torch.as_tensor(weights).float().tolist() == [1.0, 0.0]


@check("keras.src.trainers.compile_utils", "CompileMetrics")
def _a_container_of_metrics_is_known_by_its_module() -> None:
    model = model_of(metrics=["mae"])
    model.train_on_batch(X, Y)
    containers = [one for one in model.metrics if type(one).__module__ == "keras.src.trainers.compile_utils"]
    assert [metric.name for one in containers for metric in one.metrics] == ["mae"]
    assert [type(one).__name__ for one in containers] == ["CompileMetrics"]


@check("keras.src.trainers.data_adapters.data_adapter", "DataAdapter")
def _keras_trains_on_any_adapter() -> None:
    from keras.src.trainers import data_adapters
    from keras.src.trainers.data_adapters.data_adapter import DataAdapter

    assert isinstance(data_adapters.get_data_adapter(X, Y, batch_size=2), DataAdapter)
    members = ("get_torch_dataloader", "num_batches", "batch_size", "on_epoch_begin", "on_epoch_end")
    assert all(hasattr(DataAdapter, member) for member in members)


def array_adapter() -> Any:
    from keras.src.trainers import data_adapters
    from keras.src.trainers.data_adapters.array_data_adapter import ArrayDataAdapter

    adapter = data_adapters.get_data_adapter(X, Y, batch_size=3, shuffle=True)
    assert type(adapter) is ArrayDataAdapter
    return adapter


@check("keras.src.trainers.data_adapters.array_data_adapter", "ArrayDataAdapter")
def _arrays_are_read_by_lists_of_indices() -> None:
    loader = array_adapter().get_torch_dataloader()
    indices = list(loader.batch_sampler)
    assert sorted(len(list(batch)) for batch in indices) == [1, 3]
    x, y = loader.dataset.__getitems__([3, 0])
    assert (x.shape, y.shape) == ((2, 2), (2, 1))


@check("keras.Model", "_initial_epoch")
def _training_begins_where_it_is_told() -> None:
    model = model_of()
    assert model._initial_epoch is None
    model._initial_epoch = 3
    assert model.fit(X, Y, epochs=5, verbose=0).epoch == [3, 4]


@check("keras.src.backend.common.symbolic_scope", "in_symbolic_scope")
def in_symbolic_scope() -> None:
    from keras.src.backend.common.symbolic_scope import in_symbolic_scope

    seen: list[bool] = []

    class Looking(keras.layers.Layer):
        def call(self, x: Any) -> Any:
            seen.append(in_symbolic_scope())
            return x

    keras.Sequential([keras.Input((2,)), Looking()])(np.ones((1, 2), "float32"))
    assert (seen[0], seen[-1]) == (True, False)


@check("keras.src.trainers.data_adapters.data_adapter_utils", "class_weight_to_sample_weights")
def class_weight_to_sample_weights() -> None:
    from keras.src.trainers.data_adapters.data_adapter_utils import class_weight_to_sample_weights

    weights = {0: 0.5, 1: 3.0}
    assert class_weight_to_sample_weights(np.array([1, 0, 2]), weights).tolist() == [3.0, 0.5, 1.0]
    assert class_weight_to_sample_weights(np.eye(2), weights).tolist() == [0.5, 3.0]


@check("keras.src.trainers.data_adapters.generator_data_adapter", "GeneratorDataAdapter")
def _generators_have_an_adapter_of_their_own() -> None:
    from keras.src.trainers import data_adapters
    from keras.src.trainers.data_adapters.generator_data_adapter import GeneratorDataAdapter

    assert type(data_adapters.get_data_adapter(pair for pair in [(X, Y)])) is GeneratorDataAdapter


@check("keras.src.trainers.data_adapters.torch_data_loader_adapter", "TorchDataLoaderAdapter")
def _a_users_loader_is_handed_on_as_it_is() -> None:
    from keras.src.trainers import data_adapters
    from keras.src.trainers.data_adapters.torch_data_loader_adapter import TorchDataLoaderAdapter

    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.ones(4, 2), torch.ones(4)))
    adapter = data_adapters.get_data_adapter(loader)
    assert type(adapter) is TorchDataLoaderAdapter
    assert adapter.get_torch_dataloader() is loader


@check("keras.src.trainers.epoch_iterator.EpochIterator", "_steps_seen")
def _steps_of_a_pass_are_counted_over_epochs() -> None:
    from keras.src.trainers.epoch_iterator import EpochIterator

    batches = EpochIterator(X, Y, batch_size=1, steps_per_epoch=2)
    for _ in range(3):
        for _ in batches:
            seen = batches._steps_seen
    assert (seen, batches._steps_seen) == (2, 2), "the third epoch begins a new pass of four batches"


@check("keras.src.trainers.data_adapters.array_data_adapter.ArrayDataAdapter", "_inputs")
def _the_arrays_can_be_looked_at() -> None:
    arrays = keras.tree.flatten(array_adapter()._inputs)
    assert [tuple(array.shape) for array in arrays if array is not None] == [X.shape, Y.shape]


@check("keras.optimizers.Adam", "_get_variable_index")
@check("keras.optimizers.Adam", "_momentums")
@check("keras.optimizers.Adam", "_velocities")
def _adams_moments_are_found_by_the_variables_index() -> None:
    adam, (first, second) = keras.optimizers.Adam(), (keras.Variable([1.0]), keras.Variable([1.0, 2.0]))
    adam.build([first, second])
    adam.apply([torch.tensor([0.5]), torch.tensor([0.0, 3.0])])
    place = adam._get_variable_index(second)
    np.testing.assert_allclose(adam._momentums[place].value.tolist(), [0.0, 0.3], rtol=1e-6)
    np.testing.assert_allclose(adam._velocities[place].value.tolist(), [0.0, 0.009], rtol=1e-5)


def test_no_other_private_name_of_keras_is_used() -> None:
    allowed = {internal.name for internal in (*INTERNALS, *of_jax.INTERNALS)} | _hooked()
    astray = sorted(f"{path.name}:{line} {name}" for path, line, name in _private_names() if name not in allowed)
    assert not astray, "\n".join(astray)


def test_every_row_is_used() -> None:
    used = {name for _, _, name in _private_names()} | {name for _, _, name in _imports_from_inside()}
    used |= {part for text in _texts() for part in text.split(".")}
    listed = {internal.name for internal in (*INTERNALS, *of_jax.INTERNALS)}
    # Known by its module only, and called through its module.
    by_module = {"CompileMetrics", "apply_mask", "convert_to_sliceable", "get_keras_mask", "set_keras_mask"}
    assert listed - used <= by_module
    sources = "".join(path.read_text() for path in FOLDER.rglob("*.py"))
    assert "keras.src.trainers.compile_utils" in sources
    assert "keras_loss.apply_mask(" in sources
    assert "array_slicing.convert_to_sliceable(" in sources


def test_what_is_imported_from_inside_keras_is_in_a_table() -> None:
    listed = {(internal.owner, internal.name) for internal in (*INTERNALS, *of_jax.INTERNALS)}
    modules = {owner for owner, _ in listed}
    astray = [
        f"{path.name}: {module}.{name}"
        for path, module, name in _imports_from_inside()
        # The table of hooks imports what owns them.
        if path.name != "_hooks.py" and (module, name) not in listed and f"{module}.{name}" not in modules
    ]
    assert not astray, "\n".join(astray)


def _hooked() -> set[str]:
    """The names in the tables of hooks."""
    return {
        constant.value
        for path, tree in _trees()
        if path.name == "_hooks.py"
        for call in ast.walk(tree)
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id == "Hook"
        for constant in call.args
        if isinstance(constant, ast.Constant)
    }


def _trees() -> Iterator[tuple[Path, ast.Module]]:
    for path in sorted(FOLDER.rglob("*.py")):
        if path.name != "_internals.py":
            yield path, ast.parse(path.read_text())


def _private_names() -> Iterator[tuple[Path, int, str]]:
    """Private attributes of anything but self, cls, torch and our own modules, and names given to getattr."""
    for path, tree in _trees():
        ours = {alias.asname or alias.name for node in ast.walk(tree) for alias in _first_party(node)}
        for node in ast.walk(tree):
            if isinstance(node, ast.Attribute) and _is_private(node.attr):
                if not (isinstance(node.value, ast.Name) and node.value.id in {"self", "cls", "torch", "jax", *ours}):
                    yield path, node.lineno, node.attr
            elif (
                isinstance(node, ast.Call)
                and isinstance(node.func, ast.Name)
                and node.func.id in ("getattr", "hasattr")
            ):
                for argument in node.args[1:2]:
                    if isinstance(argument, ast.Constant) and _is_private(str(argument.value)):
                        yield path, node.lineno, str(argument.value)


def _first_party(node: ast.AST) -> list[ast.alias]:
    return node.names if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("stratagem") else []


def _is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__") and not name.startswith("_stratagem")


def _imports_from_inside() -> Iterator[tuple[Path, str, str]]:
    for path, tree in _trees():
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("keras.src"):
                yield from ((path, node.module or "", alias.name) for alias in node.names)


def _texts() -> Iterator[str]:
    for _, tree in _trees():
        yield from (n.value for n in ast.walk(tree) if isinstance(n, ast.Constant) and isinstance(n.value, str))
