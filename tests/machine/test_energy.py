"""Energy, power and heat, as recorded kernels tell them."""

from __future__ import annotations

from pathlib import Path

import pytest

from edgeinfer.machine import energy as module
from edgeinfer.machine.energy import Energy, Watch, read_watts


def zone(root: Path, number: int, joules: float) -> Path:
    place = root / f"intel-rapl:{number}"
    place.mkdir(exist_ok=True)
    (place / "max_energy_range_uj").write_text("1000000000")
    (place / "energy_uj").write_text(str(int(joules * 1e6)))
    return place


def test_energy_is_that_of_the_time_at_work(tmp_path: Path) -> None:
    zone(tmp_path, 0, 100)
    zone(tmp_path, 1, 5)
    # A part of the first one, which counts already.
    (tmp_path / "intel-rapl:0:0").mkdir()
    energy = Energy(tmp_path)
    zone(tmp_path, 0, 400)
    energy.begin(10.0)
    zone(tmp_path, 0, 403)
    energy.end(10.5, idle=False)
    assert energy.joules == 0
    energy.begin(10.5)
    zone(tmp_path, 1, 7)
    energy.end(11.1, idle=False)
    assert energy.joules == pytest.approx(5)
    zone(tmp_path, 0, 404)
    energy.end(11.2, idle=True)
    assert energy.joules == pytest.approx(6)
    zone(tmp_path, 0, 900)
    energy.begin(50.0)
    # The counter turns over at 1,000 J.
    zone(tmp_path, 0, 2)
    energy.end(50.1, idle=True)
    assert energy.joules == pytest.approx(6 + 102)


def test_energy_is_unknown_where_the_kernel_does_not_tell(tmp_path: Path) -> None:
    assert Energy(tmp_path).joules is None
    place = zone(tmp_path, 0, 1)
    energy = Energy(tmp_path)
    assert energy.joules == 0
    energy.begin(0.0)
    (place / "energy_uj").unlink()
    energy.end(2.0, idle=False)
    assert energy.joules is None
    assert Energy(tmp_path).joules is None


def put(root: Path, files: dict[str, str]) -> None:
    for name, content in files.items():
        place = root / name
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(content)


def test_power_of_a_jetsons_rails_and_of_a_chip_that_multiplies(tmp_path: Path) -> None:
    first, second = "sys/class/hwmon/hwmon1", "sys/class/hwmon/hwmon2"
    put(
        tmp_path,
        {
            f"{first}/name": "ina3221",
            f"{first}/in1_label": "VDD_IN",
            f"{first}/in1_input": "4984",
            f"{first}/curr1_input": "1200",
            # A channel that nothing is connected to.
            f"{first}/in2_label": "NC",
            f"{second}/name": "cpu_power",
            f"{second}/power1_input": "2500000",
            "sys/class/power_supply/BAT0/type": "Battery",
            "sys/class/power_supply/BAT0/power_now": "9000000",
        },
    )
    assert read_watts(tmp_path) == pytest.approx({"VDD_IN": 5.9808, "cpu_power": 2.5})


def test_power_of_a_battery_where_nothing_else_is_measured(tmp_path: Path) -> None:
    supply = "sys/class/power_supply"
    put(tmp_path, {f"{supply}/BAT0/type": "Battery", f"{supply}/BAT0/power_now": "-4500000"})
    put(tmp_path, {f"{supply}/AC/type": "Mains", f"{supply}/AC/power_now": "1"})
    assert read_watts(tmp_path) == {"battery": 4.5}


def test_a_watch_sees_the_highest_temperature_and_the_mean_power(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_PERIOD_S", 60.0)
    zone_, rail = "sys/class/thermal/thermal_zone0", "sys/class/hwmon/hwmon0"
    put(tmp_path, {f"{zone_}/type": "cpu-thermal", f"{zone_}/temp": "48000"})
    put(tmp_path, {f"{rail}/name": "soc", f"{rail}/power1_input": "3000000"})
    counter = tmp_path / "sys/class/powercap"
    counter.mkdir(parents=True)
    zone(counter, 0, 100)
    with Watch(tmp_path) as watch:
        put(tmp_path, {f"{zone_}/temp": "61500", f"{rail}/power1_input": "7000000"})
        zone(counter, 0, 130)
    taken = watch.taken
    assert taken.celsius_before == {"cpu-thermal": 48.0}
    assert taken.celsius_highest == {"cpu-thermal": 61.5}
    assert taken.watts["soc"] == pytest.approx(5.0)
    assert taken.watts["processor"] == pytest.approx(30 / taken.seconds)


def test_a_watch_says_nothing_where_the_kernel_does_not_tell(tmp_path: Path) -> None:
    with Watch(tmp_path) as watch:
        pass
    assert (watch.taken.celsius_before, watch.taken.celsius_highest) == ({}, {})
    assert watch.taken.watts == {}
