from edgeinfer import profiles
from edgeinfer.convert.pipeline.request import resolve_profiles


def test_all_leaves_out_what_is_asked_for_by_name_only() -> None:
    found = {p.name: p for p in resolve_profiles(("all",))}
    assert {"cpu", "openvino", "rpi4", "ios", "macos", "android"} <= found.keys()
    assert not any(p.by_name_only for p in found.values())
    left = set(profiles.names()) - found.keys()
    assert {"ios27", "macos27", "tvm-x86-64-v3"} <= left
    assert [p.name for p in resolve_profiles(("all", "ios27", "cpu"))] == [*found, "ios27"]
