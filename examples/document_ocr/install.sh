#!/bin/bash
# Raspberry Pi OS Bookworm or Trixie (64 bit), JetPack 7, Debian or Ubuntu with Python 3.11 or newer.
# Run from a checkout: examples/document_ocr/install.sh
# With three bundles and a folder it also sets up a service that reads what comes into the folder:
#   install.sh det.edge cls.edge rec.edge /srv/scans
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
root=$(cd "$here/../.." && pwd)
home=/opt/edgeinfer
python=${PYTHON:-python3}

if ! "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))'; then
    echo "install.sh: expected Python 3.11 or newer; on JetPack 6: sudo apt install python3.11 python3.11-venv, then PYTHON=python3.11 $0" >&2
    exit 1
fi
sudo apt-get update
sudo apt-get install -y python3-venv
sudo install -d -o "$USER" "$home"
[ -x "$home/venv/bin/python" ] || "$python" -m venv "$home/venv"
"$home/venv/bin/pip" install --upgrade pip
"$home/venv/bin/pip" install "$root[onnxruntime,media]"
install -m 755 "$here/read.py" "$home/read.py"
"$home/venv/bin/edgeinfer" doctor

if [ $# -eq 4 ]; then
    install -m 644 "$1" "$home/find.edge"
    install -m 644 "$2" "$home/turn.edge"
    install -m 644 "$3" "$home/read.edge"
    inbox=$(realpath -m "$4")
    if [[ "$inbox" == *[\"%\|\&\\]* ]]; then
        echo "install.sh: systemd cannot be told of a folder named like that: $inbox" >&2
        exit 2
    fi
    sudo install -d -o "$USER" "$inbox"
    sed "s|@USER@|$USER|; s|@INBOX@|$inbox|" "$here/edgeinfer-ocr.service" |
        sudo tee /etc/systemd/system/edgeinfer-ocr.service >/dev/null
    sudo systemctl daemon-reload
    sudo systemctl enable --now edgeinfer-ocr.service
    echo "put pictures into $inbox · journalctl -u edgeinfer-ocr -f"
elif [ $# -ne 0 ]; then
    echo "install.sh: expected three bundles and a folder for the service, received $#" >&2
    exit 2
fi
