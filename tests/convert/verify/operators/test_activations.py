from edgeinfer.convert.verify.operators.activations import with_numbers


def test_numbers_go_to_the_functions_that_have_some_in_their_order() -> None:
    names = ("Tanh", "HardSigmoid", "LeakyRelu", "sigmoid", "Affine")
    assert with_numbers(names, (0.1, 0.2, 0.3), (0.5,)) == [
        ("Tanh", None, None),
        ("HardSigmoid", 0.1, 0.5),
        ("LeakyRelu", 0.2, None),
        ("sigmoid", None, None),
        ("Affine", 0.3, None),
    ]


def test_without_numbers_the_defaults_count() -> None:
    assert with_numbers(("Elu", "ScaledTanh"), None, None) == [
        ("Elu", None, None),
        ("ScaledTanh", None, None),
    ]
