#!/usr/bin/env bash
# Builds CRI-O for the lab's hosts (bowline-lab up --runtime crio) from its published module, once.
# This takes about ten minutes and is not part of the other builds.
#
#   hack/build-crio.sh [--check]     --check: only reports whether it is built
#
# Programs go to $BOWLINE_CACHE/crio/bin (root: /var/cache/bowline/crio/bin).
# CRI-O is partly written in C (seccomp), so it needs gcc and libseccomp, and it runs its containers
# with conmon; all are Debian packages.
set -euo pipefail
cd "$(dirname "$0")/.."

version=v1.34.0
tags='containers_image_openpgp containers_image_ostree_stub exclude_graphdriver_btrfs exclude_graphdriver_devicemapper seccomp'

if [ "$(id -u)" = 0 ]; then default_cache=/var/cache/bowline; else default_cache=${XDG_CACHE_HOME:-$HOME/.cache}/bowline; fi
cache=${BOWLINE_CACHE:-$default_cache}/crio
stamp="$version $(go env GOVERSION GOARCH | tr '\n' ' ')$tags"

if [ -x "$cache/bin/crio" ] && [ "$(cat "$cache/stamp" 2>/dev/null)" = "$stamp" ] && command -v conmon >/dev/null; then
  echo "CRI-O is in $cache/bin"
  exit 0
fi
if [ "${1:-}" = --check ]; then
  echo "CRI-O is not built; hack/build-crio.sh builds it" >&2
  exit 1
fi

missing=()
for package in conmon gcc libc6-dev libseccomp-dev pkg-config make; do
  dpkg-query -W -f '${Status}' "$package" 2>/dev/null | grep -q 'ok installed' || missing+=("$package")
done
if [ ${#missing[@]} != 0 ]; then
  if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then
    echo "packages are missing; install them: sudo apt-get install -y ${missing[*]}" >&2
    exit 1
  fi
  echo "installing ${missing[*]}"
  apt-get update -qq
  DEBIAN_FRONTEND=noninteractive RUNLEVEL=1 apt-get install -y -qq --no-install-recommends "${missing[@]}"
fi

# The module's directory is read-only, and a build inside it needs to write.
source=$(go mod download -json "github.com/cri-o/cri-o@$version" | sed -n 's/^\t"Dir": "\(.*\)",$/\1/p')
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cp -r "$source/." "$work"
chmod -R u+w "$work"
mkdir -p "$cache/bin"

echo "building CRI-O $version (about ten minutes)"
(cd "$work" && CGO_ENABLED=1 GOFLAGS=-mod=mod go build -trimpath -buildvcs=false -ldflags '-s -w' -tags "$tags" -o "$cache/bin/crio" ./cmd/crio)
make -C "$work/pinns" >/dev/null
install -m 0755 "$work/bin/pinns" "$cache/bin/pinns"
echo "$stamp" >"$cache/stamp"
echo "CRI-O is in $cache/bin"
