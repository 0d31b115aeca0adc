#!/bin/bash -e
# What the image is, agent or edge: FEDAGENT_ROLE in pi-gen's `config`. The wheel and a settings' file
# (ROLE.toml) lie in files/ beside this script.
role=${FEDAGENT_ROLE:-agent}
wheel=$(ls files/fedagent-*.whl)
install -D -m 644 "$wheel" "${ROOTFS_DIR}/var/cache/fedagent/$(basename "$wheel")"
if [ -f "files/${role}.toml" ]; then
    install -D -m 644 "files/${role}.toml" "${ROOTFS_DIR}/etc/fedagent/${role}.toml"
fi
on_chroot <<EOF
set -e
python3 -m venv /opt/fedagent
/opt/fedagent/bin/pip install --no-cache-dir "/var/cache/fedagent/$(basename "$wheel")"
systemctl disable mosquitto
# Another root than "/" only enables it, for nothing runs here.
/opt/fedagent/bin/fedagent service install ${role} --root /proc/self/root
EOF
