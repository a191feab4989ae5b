#!/bin/sh
# Installs the wheels of a folder, and what lies beside this script, into the root file system of an image:
#   install.sh WHEELS ROOT
set -e
wheels=$1 root=$2
here=$(dirname "$0")
cp -a "$here/rootfs/." "$root/"
python3 -m venv "$root/opt/barnabas"
"$root/opt/barnabas/bin/python" -m pip install --quiet --no-index --find-links "$wheels" 'barnabas[cli,security]'
"$root/opt/barnabas/bin/python" -m pip uninstall --quiet --yes pip setuptools
mkdir -p "$root/opt/kafka/bin" "$root/var/lib/kafka/data" "$root/mnt/shared/config" "$root/etc/kafka/secrets"
cp -a "$here/../bin/." "$root/opt/kafka/bin/"
ln -sf /opt/barnabas/bin/barnabas "$root/usr/local/bin/barnabas"
for script in "$root"/opt/kafka/bin/*.sh; do
  name=$(basename "$script" .sh)
  [ -e "$root/usr/local/bin/$name" ] || ln -s "/opt/kafka/bin/$name.sh" "$root/usr/local/bin/$name"
done
chown -R 1000:1000 "$root/var/lib/kafka" "$root/etc/confluent/docker" "$root/etc/kafka"
