"""The converter: source model in, verified bundle out. Never imported by ``edgeinfer.runtime``."""

from importlib.util import find_spec

from edgeinfer.errors import NotAvailableError

_NEEDED = ("jinja2", "onnx", "onnx_ir")

if _missing := [name for name in _NEEDED if find_spec(name) is None]:
    raise NotAvailableError(
        f"converting models needs {', '.join(_missing)}, not installed here; "
        "pip install 'edgeinfer[convert]'"
    )
