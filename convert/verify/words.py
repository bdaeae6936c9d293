"""What the report's page says in the user's words: what was changed, and what to ship where."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from edgeinfer.metrics import verdict_on

STAGES = {
    "source": "As the file was read",
    "drop_default_inputs": "Inputs with a value in the file became constants",
    "name_everything": "Nodes and tensors without a name got one",
    "inline_functions": "The model's own functions were written out where they are called",
    "lift_constants": "Constants were collected in one place",
    "state_defaults": "Settings that were left to a default were written down",
    "infer_shapes": "Shapes and types were worked out",
    "fold_shapes": "Arithmetic on shapes was done ahead",
    "fold_zero_products": "Integers times zero became zeros",
    "fold_constants": "What does not depend on the inputs was computed ahead",
    "inline_control_flow": "Branches with a known condition were replaced by the one taken",
    "raise_opset": "The model was raised to the newest operator set",
    "settle_squeeze": "A branch that cannot run was dropped",
    "collect_sequences": "Lists that loops append to became outputs of their turns",
    "settle_sequences": "Lists of tensors were taken apart",
    "drop_zero_states": "First states that are zero were left out",
    "remove_identity": "Operators that change nothing were removed",
    "clean_cast": "Changes of type that do nothing were removed",
    "clean_transpose": "Transposes that cancel out were removed",
    "clean_reshape": "Chains of reshapes became one",
    "share_nodes": "Equal computations are done once",
    "remove_dead_code": "What no output depends on was removed",
    "remove_nan_guards": "Guards against NaN that can never occur were removed",
    "settle_padding": "The padding of windows was written as numbers",
    "fold_pad": "Padding moved into the operator behind it",
    "fold_conv_bn": "Batch normalisation and scales moved into the weights before them",
    "fuse_layer_norm": "Layer normalisation was recognised",
    "absorb_layer_norm_scale": "Scales moved into layer normalisation",
    "fuse_rms_norm": "RMS normalisation was recognised",
    "absorb_rms_norm_scale": "Scales moved into RMS normalisation",
    "fuse_gelu": "GELU was recognised",
    "fuse_hard_swish": "Hard swish was recognised",
    "fuse_hard_sigmoid": "Hard sigmoid was recognised",
    "fuse_silu": "SiLU was recognised",
    "fuse_softplus": "Softplus was recognised",
    "fuse_mish": "Mish was recognised",
    "fuse_leaky_relu": "Leaky ReLU was recognised",
    "scale_scores": "Queries of half precision are scaled before their products with keys",
    "fuse_attention": "Attention was recognised",
    "widen_halves": "Large intermediate results are computed in single precision",
    "share_initializers": "Equal weights are stored once",
    "quantize": "Weights and activations got fewer bits",
    "half precision": "What is computed in half precision",
    "targets": "About the targets",
}
"""Titles of stages by their name; another one stands for itself."""


def changes(report: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the changes with a title each, those that a user should know first."""
    found = [
        {**change, "title": STAGES.get(change["stage"], change["stage"])}
        for change in report["changes"]
    ]
    return sorted(found, key=lambda c: c["stage"] not in ("source", "targets", "half precision"))


def comparison(report: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return a row for each variant on each engine: size, error, time, place and verdict."""
    rows = []
    for variant in report["variants"]:
        for engine in variant["engines"]:
            metrics = [output["metrics"] for output in engine["outputs"]]
            differ = sum(m.get("mismatches") or 0 for m in metrics)
            errors = [m["max_rel"] for m in metrics if m.get("max_rel") is not None]
            rows.append(
                {
                    "id": variant["id"],
                    "precision": variant["precision"],
                    "size_bytes": variant["size_bytes"],
                    "engine": f"{engine['backend']} {engine['version'] or ''}".strip(),
                    "device": engine["device"],
                    "error": f"{differ} elements" if differ else _largest(errors),
                    "latency_ms": _time(variant, engine),
                    "verdict": verdict_on(
                        engine["verdict"],
                        stands_in=engine["stands_in"],
                        is_of_target=variant["is_of_target"],
                        arch=report["machine"]["arch"],
                    ),
                }
            )
    return rows


def right_numbers(report: Mapping[str, Any]) -> tuple[int, int]:
    """Count the variants whose numbers are right: where they are meant to run, and elsewhere only.

    Args:
        report: in its JSON form.
    """
    right = [v for v in report["variants"] if v["passed"]]
    own = sum(v["is_of_target"] and v["verdict"] != "not run" for v in right)
    return own, len(right) - own


def _largest(errors: Sequence[float]) -> str:
    return "-" if not errors else "equal" if max(errors) == 0 else f"{max(errors):.1e}"


def _time(variant: Mapping[str, Any], engine: Mapping[str, Any]) -> float | None:
    """Return the best time, where it says something of the target."""
    if not variant["is_of_target"] or engine["stands_in"]:
        return None
    return min(engine["latency_ms"].values(), default=None)


def advice(report: Mapping[str, Any]) -> list[str]:
    """Return a sentence for each target: which of its variants to ship."""
    known = {v["id"]: v for v in report["variants"]}
    targets = {
        target: [{**known[i], "id": _own(target, i)} for i in ids if i in known]
        for target, ids in report["targets"].items()
    }
    return [
        f"{target}: {sentence}" for target, found in targets.items() for sentence in _ship(found)
    ]


def _own(target: str, ident: str) -> str:
    """Return what a variant is called in the bundle for one of the targets that share it."""
    # A format and a precision have no hyphen; the name of a target may.
    return "-".join((target, *ident.rsplit("-", 2)[1:]))


def _ship(variants: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    right = [v for v in variants if v["passed"]]
    if not right:
        if all(v["verdict"] == "not run" for v in variants):
            ids = " or ".join(v["id"] for v in variants)
            yield f"{ids}, once edgeinfer verify has passed on the device; nothing here ran it."
        else:
            yield "nothing; the numbers of no variant are right."
        return
    timed = {v["id"]: t for v in right for e in v["engines"] if (t := _time(v, e)) is not None}
    if len(right) == 1:
        one, time = right[0]["id"], timed.get(right[0]["id"])
        unseen = "; it has not run on such a device yet, and the first run there has to show it."
        yield f"ship {one}" + (unseen if time is None else f", {time:.3g} ms here.")
    elif timed:
        best = min(timed, key=lambda one: timed[one])
        yield (
            f"ship {best}, {timed[best]:.3g} ms here, or the whole bundle: edgeinfer.load times "
            "all of them on the device and takes the fastest."
        )
    else:
        ids = " and ".join(v["id"] for v in right)
        yield (
            f"ship the bundle with {ids}: none was timed on such a device, and edgeinfer.load "
            "times them there and takes the fastest."
        )
