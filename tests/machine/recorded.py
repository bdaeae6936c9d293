"""File systems of devices, as far as they are read, written from public documentation.

None of them was copied from a device: the values are those of the vendors' manuals and of listings
that users published (Raspberry Pi documentation, NVIDIA Jetson Linux developer guide, Arm technical
reference manuals, Linux's documentation of sysfs and procfs).
"""

from collections.abc import Mapping
from pathlib import Path

ARM_FEATURES = "fp asimd evtstrm crc32 cpuid"
ARM_8_2 = "fp asimd evtstrm aes pmull sha1 sha2 crc32 atomics fphp asimdhp cpuid asimdrdm asimddp"


def arm_cpuinfo(parts: list[int], features: str, tail: str = "", implementer: int = 0x41) -> str:
    blocks = [
        f"processor\t: {cpu}\nBogoMIPS\t: 108.00\nFeatures\t: {features}\n"
        f"CPU implementer\t: {implementer:#x}\nCPU architecture: 8\nCPU variant\t: 0x0\n"
        f"CPU part\t: {part:#x}\nCPU revision\t: 3\n"
        for cpu, part in enumerate(parts)
    ]
    return "\n".join(blocks) + tail


def clocks(khz: list[int], capacity: list[int] | None = None) -> dict[str, str]:
    base = "sys/devices/system/cpu"
    files = {f"{base}/online": f"0-{len(khz) - 1}\n"}
    for cpu, clock in enumerate(khz):
        files[f"{base}/cpu{cpu}/cpufreq/cpuinfo_max_freq"] = f"{clock}\n"
        if capacity:
            files[f"{base}/cpu{cpu}/cpu_capacity"] = f"{capacity[cpu]}\n"
    return files


def cache(cpu: int, index: int, level: int, kind: str, size: str, shared: str) -> dict[str, str]:
    folder = f"sys/devices/system/cpu/cpu{cpu}/cache/index{index}"
    return {
        f"{folder}/level": f"{level}\n",
        f"{folder}/type": f"{kind}\n",
        f"{folder}/size": f"{size}\n",
        f"{folder}/shared_cpu_list": f"{shared}\n",
    }


def jetson(model: str, chip: str, revision: str, cuda: str, tensorrt: str) -> dict[str, str]:
    return {
        "proc/device-tree/model": f"{model}\0",
        "proc/device-tree/compatible": f"nvidia,board\0nvidia,{chip}\0",
        "etc/nv_tegra_release": f"# {revision}, GCID: 1, BOARD: generic, EABI: aarch64, DATE: x\n",
        "usr/local/cuda/version.json": f'{{"cuda": {{"name": "CUDA SDK", "version": "{cuda}"}}}}\n',
        f"usr/lib/aarch64-linux-gnu/libnvinfer.so.{tensorrt}": "",
        f"usr/lib/aarch64-linux-gnu/libnvinfer.so.{tensorrt.split('.')[0]}": "",
    }


ORIN_RELEASE = "R36 (release), REVISION: 4.3"
NVPMODEL = "< POWER_MODEL ID=0 NAME=15W >\n< POWER_MODEL ID=1 NAME=25W >\n"
THROTTLED = "sys/devices/platform/soc/soc:firmware/get_throttled"

DEVICES: Mapping[str, Mapping[str, str]] = {
    "pi4": {
        "proc/cpuinfo": arm_cpuinfo([0xD08] * 4, ARM_FEATURES),
        "proc/meminfo": "MemTotal:        3886360 kB\nMemAvailable:    3400000 kB\n",
        "proc/device-tree/model": "Raspberry Pi 4 Model B Rev 1.4\0",
        "proc/device-tree/compatible": "raspberrypi,4-model-b\0brcm,bcm2711\0",
        "etc/os-release": 'PRETTY_NAME="Debian GNU/Linux 12 (bookworm)"\nNAME="Debian"\n',
        "sys/class/thermal/thermal_zone0/type": "cpu-thermal\n",
        "sys/class/thermal/thermal_zone0/temp": "81788\n",
        "sys/devices/system/cpu/cpu0/cpufreq/scaling_governor": "ondemand\n",
        THROTTLED: "80008\n",
        **clocks([1800000] * 4),
    },
    "pi5": {
        "proc/cpuinfo": arm_cpuinfo([0xD0B] * 4, ARM_8_2),
        "proc/meminfo": "MemTotal:        8256096 kB\nMemAvailable:    7000000 kB\n",
        "proc/device-tree/model": "Raspberry Pi 5 Model B Rev 1.0\0",
        "proc/device-tree/compatible": "raspberrypi,5-model-b\0brcm,bcm2712\0",
        "etc/os-release": 'PRETTY_NAME="Debian GNU/Linux 13 (trixie)"\n',
        THROTTLED: "0\n",
        **clocks([2400000] * 4),
        **cache(0, 0, 1, "Data", "64K", "0"),
        **cache(0, 1, 1, "Instruction", "64K", "0"),
        **cache(0, 2, 2, "Unified", "512K", "0"),
        **cache(0, 3, 3, "Unified", "2048K", "0-3"),
    },
    "orin-nano": {
        "proc/cpuinfo": arm_cpuinfo([0xD42] * 6, ARM_8_2),
        "proc/meminfo": "MemTotal:        7802000 kB\nMemAvailable:    5000000 kB\n",
        **jetson(
            "NVIDIA Jetson Orin Nano Engineering Reference Developer Kit Super",
            "tegra234",
            ORIN_RELEASE,
            "12.6.68",
            "10.3.0",
        ),
        "var/lib/nvpmodel/status": "pmode:0001\nfmode:cool\n",
        "etc/nvpmodel.conf": NVPMODEL,
        **clocks([1728000] * 6),
    },
    "agx-orin": {
        "proc/cpuinfo": arm_cpuinfo([0xD42] * 12, ARM_8_2),
        "proc/meminfo": "MemTotal:       64349000 kB\nMemAvailable:   60000000 kB\n",
        **jetson(
            "NVIDIA Jetson AGX Orin Developer Kit",
            "tegra234",
            "R35 (release), REVISION: 5.0",
            "11.4.19",
            "8.5.2",
        ),
        "var/lib/nvpmodel/status": "pmode:0000\n",
        **clocks([2201600] * 12),
    },
    "thor": {
        "proc/cpuinfo": arm_cpuinfo([0xD83] * 14, f"{ARM_8_2} sve sve2 i8mm bf16"),
        "proc/meminfo": "MemTotal:      128800000 kB\nMemAvailable:  120000000 kB\n",
        **jetson(
            "NVIDIA Jetson AGX Thor Developer Kit",
            "tegra264",
            "R38 (release), REVISION: 2.0",
            "13.0.0",
            "10.13.3",
        ),
        **clocks([2601000] * 14),
    },
    "phone": {
        "proc/cpuinfo": arm_cpuinfo([0xD46] * 4 + [0xD4D] * 3 + [0xD4E], f"{ARM_8_2} i8mm bf16"),
        "proc/meminfo": "MemTotal:       11500000 kB\nMemAvailable:    6000000 kB\n",
        "system/build.prop": (
            "ro.product.system.manufacturer=Google\nro.product.system.model=Pixel 8\n"
            "ro.system.build.version.release=15\n"
        ),
        **clocks([1704000] * 4 + [2367000] * 3 + [2914000], [250] * 4 + [700] * 3 + [1024]),
        "sys/class/power_supply/battery/type": "Battery\n",
        "sys/class/power_supply/battery/status": "Discharging\n",
    },
    "x86-server": {
        "proc/cpuinfo": "\n".join(
            f"processor\t: {cpu}\nmodel name\t: INTEL(R) XEON(R) PLATINUM 8570\n"
            "flags\t\t: fpu sse4_2 avx f16c fma avx2 avx512f avx512_vnni avx512_bf16 amx_bf16 "
            "amx_tile amx_int8 avx_vnni\n"
            for cpu in range(4)
        ),
        "proc/meminfo": "MemTotal:      131072000 kB\nMemAvailable:  100000000 kB\n",
        "proc/driver/nvidia/version": (
            "NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.65.06  Sun Jul 27 06:54:38 UTC\n"
            "GCC version:  gcc version 12.3.0\n"
        ),
        "proc/driver/nvidia/gpus/0000:1b:00.0/information": (
            "Model: \t\t NVIDIA H100 80GB HBM3\nIRQ:   \t\t 123\n"
        ),
        "sys/class/dmi/id/sys_vendor": "Supermicro\n",
        "sys/class/dmi/id/product_name": "SYS-821GE\n",
        "proc/self/cgroup": "0::/system.slice/app.service\n",
        "sys/fs/cgroup/system.slice/app.service/cpu.max": "250000 100000\n",
        "sys/fs/cgroup/system.slice/app.service/memory.max": "max\n",
        "sys/fs/cgroup/system.slice/memory.max": "4294967296\n",
        "sys/fs/cgroup/system.slice/memory.current": "1073741824\n",
        "sys/fs/cgroup/system.slice/app.service/cpuset.cpus.effective": "0-3\n",
        **clocks([4000000] * 4),
    },
    "old-docker": {
        "proc/cpuinfo": "processor\t: 0\nmodel name\t: Some CPU\nflags\t: fpu avx\n",
        "proc/self/cgroup": "4:memory:/docker/abc\n2:cpu,cpuacct:/docker/abc\n",
        "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "150000\n",
        "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000\n",
        "sys/fs/cgroup/memory/memory.limit_in_bytes": "536870912\n",
        "sys/fs/cgroup/memory/memory.usage_in_bytes": "268435456\n",
        "sys/fs/cgroup/memory/docker/abc/memory.limit_in_bytes": "9223372036854771712\n",
    },
}

GETPROP = """[ro.build.version.release]: [15]
[ro.build.version.sdk]: [35]
[ro.product.manufacturer]: [Google]
[ro.product.model]: [Pixel 8]
"""
MAC = """hw.memsize: 25769803776
hw.model: Mac16,1
hw.logicalcpu: 10
hw.perflevel0.logicalcpu: 4
hw.perflevel0.name: Performance
hw.perflevel0.l1dcachesize: 131072
hw.perflevel0.l2cachesize: 16777216
hw.perflevel0.cpusperl2: 4
hw.perflevel1.logicalcpu: 6
hw.perflevel1.name: Efficiency
hw.optional.arm.AdvSIMD: 1
hw.optional.arm.FEAT_FP16: 1
hw.optional.arm.FEAT_DotProd: 1
hw.optional.arm.FEAT_BF16: 1
hw.optional.arm.FEAT_I8MM: 1
hw.optional.arm.FEAT_SME: 1
machdep.cpu.brand_string: Apple M4
kern.osproductversion: 15.3
kern.memorystatus_level: 62
System-wide power settings:
Currently in use:
 standby              1
 Sleep On Power Button 1
 lowpowermode         1
 sleep                1 (sleep prevented by powerd)
Now drawing from 'Battery Power'
"""
INTEL_MAC = """hw.memsize: 17179869184
hw.model: MacBookPro16,1
hw.logicalcpu: 12
machdep.cpu.brand_string: Intel(R) Core(TM) i7-9750H CPU @ 2.60GHz
machdep.cpu.features: FPU SSE4.2 FMA AVX1.0 F16C
machdep.cpu.leaf7_features: BMI1 AVX2
machdep.xcpm.cpu_thermal_level: 73
"""


def record(name: str, folder: Path) -> Path:
    """Write a device's files and return the root."""
    for path, content in DEVICES[name].items():
        target = folder / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(content)
    return folder
