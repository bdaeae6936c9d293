"""Support vector machines, against ONNX Runtime's kernels."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.convert.lower.tabular.tables import check_definition, one_node

X = np.random.default_rng(0).standard_normal((9, 4)).astype(np.float32)
KERNELS = ("LINEAR", "POLY", "RBF", "SIGMOID")


def _machine(classes: int, kernel: str) -> dict[str, Any]:
    rng = np.random.default_rng(classes)
    sizes = rng.integers(1, 4, classes)
    count, pairs = int(sizes.sum()), classes * (classes - 1) // 2

    def numbers(n: int) -> list[float]:
        found: list[float] = rng.standard_normal(n).astype(np.float32).tolist()
        return found

    return {
        "coefficients": numbers((classes - 1) * count),
        "support_vectors": numbers(count * 4),
        "vectors_per_class": sizes.tolist(),
        "rho": numbers(pairs),
        "kernel_type": kernel,
        "kernel_params": [0.3, 0.5, 3.0],
        "classlabels_ints": list(range(5, 5 + classes)),
    }


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("classes", [2, 3, 4])
@pytest.mark.parametrize("transform", ["NONE", "LOGISTIC", "SOFTMAX"])
def test_votes(kernel: str, classes: int, transform: str) -> None:
    about = _machine(classes, kernel)
    node = one_node("SVMClassifier", X, 2, post_transform=transform, **about)
    check_definition(node, X, 1e-4)


@pytest.mark.sample(5)
@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("classes", [2, 3, 5])
def test_probabilities(kernel: str, classes: int) -> None:
    about, rng = _machine(classes, kernel), np.random.default_rng(1)
    pairs = classes * (classes - 1) // 2
    about["prob_a"] = (-rng.random(pairs)).tolist()
    about["prob_b"] = rng.standard_normal(pairs).tolist()
    check_definition(one_node("SVMClassifier", X, 2, **about), X, 1e-4)


@pytest.mark.parametrize("classes", [2, 3])
@pytest.mark.parametrize("negative", [False, True])
def test_rows_of_coefficients(classes: int, negative: bool) -> None:
    rows = np.random.default_rng(2).standard_normal(classes * 4)
    node = one_node(
        "SVMClassifier",
        X,
        2,
        coefficients=(rows if negative else np.abs(rows)).tolist(),
        rho=[0.3],
        kernel_type="LINEAR",
        kernel_params=[0.0, 0.0, 0.0],
        classlabels_ints=list(range(classes)),
    )
    check_definition(node, X, 1e-4)


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("one_class", [0, 1])
def test_regressors(kernel: str, one_class: int) -> None:
    about = _machine(3, kernel)
    count = sum(about["vectors_per_class"])
    node = one_node(
        "SVMRegressor",
        X,
        n_supports=count,
        coefficients=about["coefficients"][:count],
        support_vectors=about["support_vectors"],
        rho=[0.2],
        kernel_type=kernel,
        kernel_params=about["kernel_params"],
        one_class=one_class,
    )
    check_definition(node, X, 1e-4)
