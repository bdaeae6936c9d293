#!/bin/bash
# Raspberry Pi OS Bookworm or Trixie, 64 bit. Run from a checkout: examples/pi_assistant/install.sh
# With eight bundles it also sets up a service:
#   install.sh mel.edge embedding.edge alexa.edge vad.edge encoder.edge decoder.edge chat.edge speaker.edge
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
"$home/venv/bin/pip" install "$root[onnxruntime,litert,media,llm]"
install -m 755 "$here/assistant.py" "$home/assistant.py"
"$home/venv/bin/edgeinfer" doctor

names=(word-1 word-2 word-3 voice encoder decoder chat speaker)
if [ $# -eq ${#names[@]} ]; then
    for name in "${names[@]}"; do
        install -m 644 "$1" "$home/$name.edge"
        shift
    done
    sed "s/@USER@/$USER/" "$here/edgeinfer-assistant.service" |
        sudo tee /etc/systemd/system/edgeinfer-assistant.service >/dev/null
    sudo systemctl daemon-reload
    sudo systemctl enable --now edgeinfer-assistant.service
    echo "journalctl -u edgeinfer-assistant -f"
elif [ $# -ne 0 ]; then
    echo "install.sh: expected ${#names[@]} bundles for the service, received $#" >&2
    exit 2
fi
