#!/bin/bash
# Raspberry Pi OS Bookworm or Trixie, 64 bit. Run from a checkout: examples/pi_camera/install.sh
# With a bundle as argument it also sets up a service that starts with the Pi:
#   examples/pi_camera/install.sh model.edge
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
root=$(cd "$here/../.." && pwd)
home=/opt/edgeinfer

if [ "$(uname -m)" != aarch64 ]; then
    echo "install.sh: expected a 64-bit Arm system, this is $(uname -m)" >&2
    exit 1
fi

sudo apt-get update
# The system's picamera2 and OpenCV are built for its libcamera and NumPy; the venv sees them.
sudo apt-get install -y python3-venv python3-picamera2 python3-opencv
sudo install -d -o "$USER" "$home"
python3 -m venv --system-site-packages "$home/venv"

# Bookworm's modules are built for NumPy 1 and do not load with NumPy 2.
numpy=$(python3 -c 'import numpy; print("numpy>=1.26,<2" if numpy.__version__ < "2" else "numpy>=2")')
"$home/venv/bin/pip" install --upgrade pip
"$home/venv/bin/pip" install "$numpy" "$root[onnxruntime,litert,media]"
install -m 755 "$here/watch.py" "$home/watch.py"
"$home/venv/bin/edgeinfer" doctor

if [ $# -gt 0 ]; then
    install -m 644 "$1" "$home/camera.edge"
    sed "s/@USER@/$USER/" "$here/edgeinfer-camera.service" |
        sudo tee /etc/systemd/system/edgeinfer-camera.service >/dev/null
    sudo systemctl daemon-reload
    sudo systemctl enable --now edgeinfer-camera.service
    echo "watch at http://$(hostname).local:8080/ · journalctl -u edgeinfer-camera -f"
fi
