#!/bin/bash
# NVIDIA Jetson with JetPack 6 (Ubuntu 22.04) or JetPack 7 (Ubuntu 24.04).
# Run from a checkout: examples/jetson_streams/install.sh
# With a bundle and sources it also sets up a service: install.sh detector.edge rtsp://a/1 rtsp://b/2
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
root=$(cd "$here/../.." && pwd)
home=/opt/edgeinfer

if [ ! -f /etc/nv_tegra_release ]; then
    echo "install.sh: expected a Jetson: /etc/nv_tegra_release is missing" >&2
    exit 1
fi
head -n 1 /etc/nv_tegra_release

sudo apt-get update
sudo install -d -o "$USER" "$home"
if python3 -c 'import sys; sys.exit(sys.version_info < (3, 11))'; then
    # JetPack 7: Python 3.12. Ubuntu's OpenCV has GStreamer, and the venv sees it.
    sudo apt-get install -y python3-venv python3-opencv
    python3 -m venv --system-site-packages "$home/venv"
    opencv=
else
    # JetPack 6: Python 3.10 is too old. The OpenCV of pip has no GStreamer, so no CSI cameras.
    sudo apt-get install -y python3.11 python3.11-venv
    python3.11 -m venv "$home/venv"
    opencv=,camera
fi
"$home/venv/bin/pip" install --upgrade pip
"$home/venv/bin/pip" install "$root[onnxruntime,media$opencv]"
install -m 755 "$here/streams.py" "$home/streams.py"
# Says which GPU engine is missing on this JetPack and the line that installs it.
"$home/venv/bin/edgeinfer" doctor || true

if [ $# -gt 1 ]; then
    install -m 644 "$1" "$home/detector.edge"
    # Minutes, which the service would else spend at its first start; without TensorRT it is said.
    "$home/venv/bin/edgeinfer" build "$home/detector.edge" || true
    shift
    printf 'SOURCES=%s\n' "$*" | sudo tee /etc/default/edgeinfer-streams >/dev/null
    sed "s/@USER@/$USER/" "$here/edgeinfer-streams.service" |
        sudo tee /etc/systemd/system/edgeinfer-streams.service >/dev/null
    sudo systemctl daemon-reload
    sudo systemctl enable --now edgeinfer-streams.service
    echo "watch at http://$(hostname).local:8080/ · journalctl -u edgeinfer-streams -f"
fi
