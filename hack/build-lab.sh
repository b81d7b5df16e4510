#!/usr/bin/env bash
# Builds the lab's programs, each only if its sources or the Go version have changed since, and
# installs the Debian packages that the lab needs.
#
#   hack/build-lab.sh [--no-packages] [PROGRAM...]
#
# Programs go to $BOWLINE_CACHE/bin (root: /var/cache/bowline/bin).
set -euo pipefail
cd "$(dirname "$0")/.."

packages=yes
[ "${1:-}" = --no-packages ] && { packages=no; shift; }
if [ "$(id -u)" = 0 ]; then default_cache=/var/cache/bowline; else default_cache=${XDG_CACHE_HOME:-$HOME/.cache}/bowline; fi
cache=${BOWLINE_CACHE:-$default_cache}
bin=$cache/bin
stamps=$cache/stamps
mkdir -p "$bin" "$stamps"

. hack/build-lib.sh
export CGO_ENABLED=0

# program  module directory  package  directories of the sources, below lab/
table() {
  cat <<'T'
bowline-lab             lab            ./cmd/bowline-lab  .
pause                   lab            ./images/pause     images/pause
web                     lab            ./images/web       images/web
toolbox                 lab            ./images/toolbox   images/toolbox
containerd-shim-runc-v2 lab/containerd ./shim             shim
bowline-containerd      lab/containerd .                  .
bowline-coredns         lab/coredns    .                  .
bowline-kube            lab/kube       .                  .
bowline-kubelet         lab/kube       ./kubelet          kubelet
T
}

# Prints the linker flags of a module's programs: -s -w leave out debug information, and Kubernetes
# says its version only if the linker sets it. kubectl and the API server's clients read it.
flags_of() {
  local flags='-s -w' version package=k8s.io/component-base/version
  if [ "$1" = lab/kube ]; then
    version=$(go -C "$1" list -m -f '{{.Version}}' k8s.io/kubernetes)
    flags+=" -X $package.gitVersion=$version -X $package.gitTreeState=clean"
    flags+=" -X $package.gitMajor=$(cut -d. -f1 <<<"${version#v}") -X $package.gitMinor=$(cut -d. -f2 <<<"$version")"
  fi
  echo "$flags"
}

# Hashes the module files, the linker flags and the Go files of a program. Nested modules are excluded.
stamp_of() {
  local module=$1 flags=$2; shift 2
  (
    cd "$module"
    go env GOVERSION GOARCH
    echo "$flags"
    cat go.mod go.sum
    for dir in "$@"; do
      find "$dir" -name testdata -prune -o \
        \( -path ./kube -o -path ./containerd -o -path ./coredns -o -path ./conformance \) -prune -o \
        -type f \( -name '*.go' -o -name '*.yaml' \) ! -name '*_test.go' -print
    done | LC_ALL=C sort -u | while read -r file; do echo "$file"; cat "$file"; done
  ) | sha256sum | cut -d' ' -f1
}

install_packages() {
  local missing=() pkg
  for pkg in runc containernetworking-plugins iptables conntrack ipset iproute2 openssh-server openssh-client busybox-static; do
    dpkg-query -W -f '${Status}' "$pkg" 2>/dev/null | grep -q 'ok installed' || missing+=("$pkg")
  done
  [ ${#missing[@]} = 0 ] && return
  if [ "$(id -u)" != 0 ]; then
    echo "programs are missing: sudo apt-get install -y ${missing[*]}" >&2
    return
  fi
  echo "installing ${missing[*]}"
  apt-get update -qq
  # No service starts: the lab runs its own.
  DEBIAN_FRONTEND=noninteractive RUNLEVEL=1 apt-get install -y -qq --no-install-recommends "${missing[@]}"
}

if [ $packages = yes ] && command -v apt-get >/dev/null; then install_packages; fi
command -v go >/dev/null || { echo "Go is missing: https://go.dev/dl, or apt-get install -y golang" >&2; exit 1; }

table | while read -r program module package sources; do
  [ $# = 0 ] || [[ " $* " == *" $program "* ]] || continue
  flags=$(flags_of "$module" </dev/null)
  # shellcheck disable=SC2086
  stamp=$(stamp_of "$module" "$flags" $sources)
  if [ -x "$bin/$program" ] && [ "$(cat "$stamps/$program" 2>/dev/null)" = "$stamp" ]; then
    continue
  fi
  echo "building $program"
  build "$module" "$package" "$bin/$program" -trimpath -buildvcs=false -ldflags "$flags" </dev/null
  echo "$stamp" >"$stamps/$program"
done
# The toolbox image has Debian's busybox. Its copy is new only if it differs: a running lab builds
# its images again when a program is newer.
if [ $# = 0 ] || [[ " $* " == *" toolbox "* ]]; then
  busybox=$(command -v busybox) || { echo "busybox is missing: apt-get install -y busybox-static" >&2; exit 1; }
  cmp -s "$busybox" "$bin/busybox" || { cp "$busybox" "$bin/busybox.new" && mv -f "$bin/busybox.new" "$bin/busybox"; }
fi
echo "the lab's programs are in $bin"
