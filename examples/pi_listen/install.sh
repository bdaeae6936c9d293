#!/bin/bash
# Raspberry Pi OS Bookworm or Trixie, 64 bit. Run from a checkout: examples/pi_listen/install.sh
# With bundles as arguments it also sets up a service: install.sh vad.edge mel.edge embedding.edge alexa.edge
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
root=$(cd "$here/../.." && pwd)
home=/opt/edgeinfer

if [ "$(uname -m)" != aarch64 ]; then
    echo "install.sh: expected a 64-bit Arm system, this is $(uname -m)" >&2
    exit 1
fi

sudo apt-get update
sudo apt-get install -y python3-venv alsa-utils libsndfile1
sudo install -d -o "$USER" "$home"
[ -x "$home/venv/bin/python" ] || python3 -m venv "$home/venv"
"$home/venv/bin/pip" install --upgrade pip
"$home/venv/bin/pip" install "$root[onnxruntime,litert,media]"
install -m 755 "$here/listen.py" "$home/listen.py"
"$home/venv/bin/edgeinfer" doctor

if [ $# -eq 4 ]; then
    install -m 644 "$1" "$home/voice.edge"
    install -m 644 "$2" "$home/word-1.edge"
    install -m 644 "$3" "$home/word-2.edge"
    install -m 644 "$4" "$home/word-3.edge"
    sed "s/@USER@/$USER/" "$here/edgeinfer-listen.service" |
        sudo tee /etc/systemd/system/edgeinfer-listen.service >/dev/null
    sudo systemctl daemon-reload
    sudo systemctl enable --now edgeinfer-listen.service
    echo "journalctl -u edgeinfer-listen -f"
elif [ $# -ne 0 ]; then
    echo "install.sh: expected four bundles for the service, received $#" >&2
    exit 2
fi
