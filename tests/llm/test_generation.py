import pytest

from edgeinfer.errors import BundleError
from edgeinfer.llm.generation import Generation


def test_it_comes_back() -> None:
    made = Generation((1, 2), 0, {"bos_token": "<s>"}, 0.6, 20, 0.9, 0.05, 1.1)
    assert Generation.from_json(made.to_json()) == made
    assert Generation.from_json(Generation().to_json()) == Generation()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "generation.json: "),
        ('{"temperature": -1, "top_p": 0}', "temperature: received -1.0; top_p: received 0.0"),
        ('{"eos": [-1]}', "eos"),
        ('{"warmth": 1}', "warmth"),
    ],
)
def test_what_makes_no_sense_is_refused(text: str, message: str) -> None:
    with pytest.raises(BundleError, match=message):
        Generation.from_json(text)
