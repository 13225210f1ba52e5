#!/usr/bin/env bash
# Both commands of the README in a minimal Debian made with debootstrap, so that nothing they need can be there by accident. Needs root.
# Usage: bash scripts/check-bare.sh [SUITE [MIRROR]]   (default: bookworm from debootstrap's own mirror)
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
suite=${1:-bookworm}
mirror=${2:-}
[ "$(id -u)" -eq 0 ] || { echo "check-bare.sh needs root for chroot" >&2; exit 2; }
command -v debootstrap >/dev/null || { apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends debootstrap >/dev/null; }
root=$(mktemp -d)
chmod 755 "$root"  # the package manager fetches as a user of its own
finish() {
  umount -l "$root/proc" "$root/dev" 2>/dev/null || true
  rm -rf --one-file-system "$root"
}
trap finish EXIT

echo "Making a minimal $suite ..."
debootstrap --variant=minbase "$suite" "$root" ${mirror:+"$mirror"} >/dev/null
# What this machine needs to reach a mirror at all (proxies, certificates), and nothing else of it.
cp /etc/resolv.conf /etc/hosts "$root/etc/"
for file in /etc/apt/apt.conf.d/*; do
  if grep -qiE 'Acquire::' "$file" && ! grep -qi 'docker' "$file"; then cp "$file" "$root/etc/apt/apt.conf.d/"; fi
done
mount -t proc proc "$root/proc"
mount --rbind /dev "$root/dev"
mount --make-rslave "$root/dev"
for absent in g++ cmake make ninja python3 git; do
  if [ -e "$root/usr/bin/$absent" ]; then echo "note: $absent is there already"; fi
done
mkdir -p "$root/root/sparscale"
git archive HEAD | tar -x -C "$root/root/sparscale"
run() {
  local start
  start=$(date +%s)
  echo "== bash $*"
  chroot "$root" env -i HOME=/root PATH=/usr/sbin:/usr/bin:/sbin:/bin TERM=dumb http_proxy="${http_proxy:-}" https_proxy="${https_proxy:-}" \
    bash -c "cd /root/sparscale && bash $*"
  echo "== took $(($(date +%s) - start)) s"
}
run scripts/demo.sh
ls "$root/root/sparscale/results/first-figure/figures"
run scripts/test.sh
echo "check-bare: both commands pass on a minimal $suite"
